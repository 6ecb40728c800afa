"""What is kept, for how long, and what deletes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.notifications.people import Provider, missed
from tests.notifications.test_worker import send, worker_for
from tests.waiting import eventually

from postroad.errors import ConfigurationError
from postroad.notifications import NotificationStore, OfflineProcessor, TokenResult
from postroad.notifications.devices import offline_push_id
from postroad.notifications.worker import relay
from postroad.testing import FakeClock
from postroad.wiring import Backend

DAY = 86_400.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime.now(UTC))


@pytest.fixture(params=["sqlite", "postgres"])
def aging(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[NotificationStore]:
    """A store on each database in turn, whose days pass when they are told to."""
    on_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/chat.db" if on_sqlite else request.getfixturevalue("postgres_dsn")
    with NotificationStore(url, clock=clock) as store:
        yield store


def messages(store: NotificationStore, *names: str) -> None:
    OfflineProcessor(store).handle_all([missed(name) for name in names])


def count(store: NotificationStore, table: str) -> int:
    with store.outbox.database.reading() as session:
        return int(session.rows(f"SELECT count(*) FROM {store.outbox.tables.qualified(table)}")[0][0])


def test_delivered_messages_are_kept_for_a_day_and_undelivered_ones_for_thirty(
    aging: NotificationStore, clock: FakeClock
) -> None:
    messages(aging, "had", "missing")
    clock.advance(10 * DAY)
    aging.mark_delivered("ann", ["had"])
    clock.advance(DAY - 1)

    early = aging.prune()
    clock.advance(2)
    delivered = aging.prune()
    left = [message.messageId for message in aging.pending("ann")]
    clock.advance(19 * DAY)
    undelivered = aging.prune()

    assert (early.delivered, delivered.delivered, delivered.undelivered, left) == (0, 1, 0, ["missing"])
    assert (undelivered.undelivered, count(aging, "offline_messages")) == (1, 0)


def test_results_are_kept_for_seven_days_after_the_last_answer(aging: NotificationStore, clock: FakeClock) -> None:
    for day in range(3):
        aging.record(f"p{day}", [TokenResult("t1", "retry", 503)], asked_at=clock.now())
        clock.advance(DAY)
    aging.record("p0", [TokenResult("t1", "sent", 200)], asked_at=clock.now())
    clock.advance(5 * DAY + 10)

    pruned = aging.prune()

    assert pruned.results == 1
    assert [len(aging.results(f"p{day}")) for day in range(3)] == [1, 0, 1]


def test_pushes_that_went_to_the_queue_leave_the_outbox_and_others_stay(
    aging: NotificationStore, backend: Backend
) -> None:
    aging.register_device("ann", "t1")
    messages(aging, "m1")
    relay(aging, backend.queue("push-queue")).run_once()
    messages(aging, "m2")

    kept = aging.prune()
    pruned = aging.prune(keep_delivered=0)

    assert (kept.outbox, pruned.outbox, count(aging, "outbox")) == (0, 1, 1)


def test_a_message_that_comes_again_after_it_was_deleted_shows_no_second_alert(
    aging: NotificationStore, backend: Backend, clock: FakeClock
) -> None:
    aging.register_device("ann", "t1")
    fcm = Provider()
    worker = worker_for(backend, aging, fcm=fcm, keep_delivered=None)
    send(backend, "offline-queue", missed("m1").to_json())
    worker.run_once()
    aging.mark_delivered("ann", ["m1"])
    aging.prune(keep_delivered=0)
    clock.advance(1)
    aging.prune(keep_delivered=0)

    send(backend, "offline-queue", missed("m1").to_json())
    report = worker.run_once()

    assert (report.stored, report.relayed, report.sent) == (1, 1, 0)
    assert fcm.shown == {(offline_push_id("ann", "m1"), "t1"): 1}


def test_a_long_list_is_deleted_whole(aging: NotificationStore, clock: FakeClock) -> None:
    messages(aging, *(f"m{number}" for number in range(2_500)))
    clock.advance(31 * DAY)

    assert aging.prune().undelivered == 2_500


def test_what_shall_stay_for_ever_stays(aging: NotificationStore, clock: FakeClock) -> None:
    messages(aging, "m1", "m2")
    aging.mark_delivered("ann", ["m1"])
    aging.record("p", [TokenResult("t1", "sent", 200)], asked_at=clock.now())
    clock.advance(10_000 * DAY)

    pruned = aging.prune(keep_delivered=None, keep_results=None, keep_undelivered=None)

    assert not any(pruned)
    assert (count(aging, "offline_messages"), count(aging, "push_results")) == (2, 1)


def test_a_running_worker_deletes_what_is_old(backend: Backend, tmp_path: Path, clock: FakeClock) -> None:
    with NotificationStore(f"sqlite:///{tmp_path}/chat.db", clock=clock) as store:
        messages(store, "m1")
        clock.advance(31 * DAY)
        stop = threading.Event()
        running = threading.Thread(target=worker_for(backend, store).run, args=(stop,))
        running.start()
        try:
            eventually(lambda: count(store, "offline_messages") == 0)
        finally:
            stop.set()
            running.join()


def test_a_sweep_that_fails_stops_nothing(
    backend: Backend, store: NotificationStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with store.outbox.database.transaction() as session:
        session.script("DROP TABLE push_results;")
    send(backend, "offline-queue", missed("m1").to_json())

    report = worker_for(backend, store).run_once()

    assert report.stored == 1
    assert "notification_prune_failed" in caplog.text


@pytest.mark.parametrize("field", ["keep_delivered", "keep_results", "keep_undelivered"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1d", True])
def test_a_time_that_cannot_be_kept_is_refused_by_its_name(
    backend: Backend, store: NotificationStore, field: str, value: Any
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}: "):
        store.prune(**{field: value})
    with pytest.raises(ConfigurationError, match=f"^{field}: "):
        worker_for(backend, store, **{field: value})
