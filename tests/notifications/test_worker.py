"""The worker: from the queue of missed messages to the devices, through every kind of trouble."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.notifications.people import Provider, missed, push_to
from tests.waiting import eventually

from postroad import connect
from postroad.errors import ConfigurationError, Unavailable
from postroad.notifications import (
    NotificationStore,
    NotificationWorker,
    OfflineProcessor,
    PushNotification,
    TokenResult,
    WorkerReport,
)
from postroad.notifications.devices import offline_push_id
from postroad.queues import OutgoingMessage, PeekedMessage, QueueSpec, redrive
from postroad.queues.markers import DeadLetter, read_dead
from postroad.wiring import Backend


def worker_for(backend: Backend, store: NotificationStore, **options: Any) -> NotificationWorker:
    named: dict[str, Any] = {
        "push_queue": "push-queue",
        "offline_queue": "offline-queue",
        "retry_delays": (0, 0),
        "wait": 0.2,
    }
    return NotificationWorker(backend, store, **(named | options))


def send(backend: Backend, queue: str, *bodies: str, **attributes: str) -> None:
    for result in backend.queue(queue).send([OutgoingMessage(body, attributes) for body in bodies]):
        assert result.ok


def dead(backend: Backend, queue: str) -> list[tuple[PeekedMessage, DeadLetter]]:
    found = [(message, read_dead(message.attributes)) for message in backend.queue(queue).peek(limit=100)]
    return [(message, marker) for message, marker in found if marker is not None]


def held(backend: Backend, queue: str) -> int:
    stats = backend.queue(queue).stats()
    return stats.visible + stats.in_flight + stats.delayed


def answering(outcome: str, status: int | None, reason: str = "", **more: Any) -> TokenResult:
    return TokenResult("", outcome, status, reason, **more)  # type: ignore[arg-type]  # one of the outcomes


def test_a_missed_message_reaches_the_device_in_one_turn(backend: Backend, store: NotificationStore) -> None:
    store.register_device("ann", "t1")
    fcm = Provider()
    send(backend, "offline-queue", missed().to_json(), missed().to_json())

    report = worker_for(backend, store, fcm=fcm).run_once()

    assert report == WorkerReport(stored=1, duplicates=1, relayed=1, sent=1)
    assert fcm.asked == [(offline_push_id("ann", "m1"), "t1")]
    assert held(backend, "offline-queue") == held(backend, "push-queue") == 0


def test_failures_are_logged_with_their_handler_and_at_level_debug_with_their_traceback(
    backend: Backend, store: NotificationStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Picky(OfflineProcessor):
        def handle_all(self, messages: Any) -> Any:
            raise ValueError("no such user, password=hunter2")

    send(backend, "offline-queue", missed().to_json())
    with caplog.at_level(logging.DEBUG, logger="postroad"):
        worker = worker_for(backend, store, offline=Picky(store), retry_delays=(0,))
        worker.run_once()
        worker.run_once()

    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    retried, dead_lettered = (
        next(line for line in lines if line["event"] == f"notification_{name}") for name in ("retried", "dead_lettered")
    )
    tracebacks = [line["traceback"] for line in lines if line["event"] == "receiver_traceback"]
    assert (retried["attempt"], retried["retry_in_seconds"], dead_lettered["attempt"]) == (1, 0, 2)
    for line in (retried, dead_lettered):
        assert line["error"] == "ValueError: no such user, password=*** [test_worker.py:handle_all]"
        assert line["handler"] == f"{__name__}.{Picky.__qualname__}"
    assert ["in handle_all" in each for each in tracebacks] == [True, True]
    assert "hunter2" not in caplog.text


def test_run_ends_with_the_error_that_ended_the_thread_of_a_receiver(
    backend: Backend, store: NotificationStore
) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("this filter of the program is broken")

    logger, stop = logging.getLogger("postroad.notifications"), threading.Event()
    send(backend, "offline-queue", "{")
    with worker_for(backend, store) as worker, ThreadPoolExecutor() as pool:
        logger.addFilter(refuse)
        try:
            running = pool.submit(worker.run, stop)
            eventually(running.done)
        finally:
            logger.removeFilter(refuse)
            stop.set()

    assert str(running.exception()) == "this filter of the program is broken"


def test_a_push_that_came_twice_is_shown_once(backend: Backend, store: NotificationStore) -> None:
    fcm = Provider()
    body = push_to("t1").to_json()
    worker = worker_for(backend, store, fcm=fcm, concurrency=1)
    send(backend, "push-queue", body, body)
    send(backend, "push-queue", body, body, PushId="offline:1")

    report = worker.run_once()

    assert report.sent == 2
    assert len(fcm.asked) == 2


@pytest.mark.parametrize(
    ("queue", "body", "says"),
    [
        ("push-queue", "", "not valid JSON"),
        ("push-queue", "{}", "type"),
        ("push-queue", missed().to_json(), "type"),
        ("push-queue", push_to("t").to_json().replace('["t"]', "[]"), "deviceTokens"),
        ("push-queue", push_to("t").to_json().replace('["t"]', '["a/../b"]'), "deviceTokens[0]"),
        ("offline-queue", push_to("t").to_json(), "type"),
        ("offline-queue", missed().to_json() + "x", "not valid JSON"),
        ("offline-queue", missed().to_json().replace('"ann"', '"ann","userId":"eve"'), "twice"),
    ],
)
def test_what_cannot_be_read_is_kept_as_a_dead_letter_with_the_reason(
    backend: Backend, store: NotificationStore, queue: str, body: str, says: str
) -> None:
    body = body or " "
    send(backend, queue, body)

    report = worker_for(backend, store, fcm=Provider()).run_once()

    ((message, marker),) = dead(backend, queue.replace("queue", "dlq"))
    assert report == WorkerReport(dead_lettered=1)
    assert message.body == body.encode()
    assert (marker.reason, marker.receives) == ("invalid", 1)
    assert "InvalidNotification" in str(marker.error)
    assert says in str(marker.error)


def test_one_bad_message_does_not_fail_its_neighbours(backend: Backend, store: NotificationStore) -> None:
    fcm = Provider()
    fcm.answers = {"t3": lambda token: TokenResult(token, "retry", 503)}
    send(backend, "push-queue", *(push_to(f"t{n}").to_json() for n in range(9)), "nonsense")

    report = worker_for(backend, store, fcm=fcm).run_once()

    assert report == WorkerReport(sent=8, retried=1, dead_lettered=1)


def test_a_provider_that_is_busy_is_asked_again_until_the_third_time(
    backend: Backend, store: NotificationStore
) -> None:
    fcm = Provider()
    fcm.down = answering("retry", 503, "Busy")
    worker = worker_for(backend, store, fcm=fcm, breaker_failures=100)
    send(backend, "push-queue", push_to("t1", "t2").to_json())

    reports = [worker.run_once() for _ in range(4)]

    assert [(report.retried, report.dead_lettered) for report in reports] == [(1, 0), (1, 0), (0, 1), (0, 0)]
    ((_, marker),) = dead(backend, "push-dlq")
    assert (marker.reason, marker.receives) == ("retries_exhausted", 3)
    assert marker.error == "PushFailed: fcm answered 503 (Busy), 2 tokens open"


def test_a_dead_letter_that_is_redriven_reaches_only_who_missed_it(backend: Backend, store: NotificationStore) -> None:
    fcm = Provider()
    fcm.answers = {"t2": lambda token: TokenResult(token, "permanent", 400, "BadThing")}
    worker = worker_for(backend, store, fcm=fcm)
    send(backend, "push-queue", push_to("t1", "t2").to_json())
    first = worker.run_once()
    fcm.answers.clear()

    redrive(backend, "push-dlq")
    second = worker.run_once()

    assert (first.sent, first.dead_lettered) == (1, 1)
    assert (second.sent, held(backend, "push-dlq")) == (1, 0)
    assert [token for _, token in fcm.asked].count("t1") == 1


def test_when_every_token_is_dead_the_push_is_done(backend: Backend, store: NotificationStore) -> None:
    store.register_device("ann", "t1")
    fcm = Provider()
    fcm.down = answering("dead_token", 404, "UNREGISTERED")
    send(backend, "push-queue", push_to("t1", "t2").to_json())

    report = worker_for(backend, store, fcm=fcm).run_once()

    assert report == WorkerReport(dropped=1)
    assert held(backend, "push-queue") == held(backend, "push-dlq") == 0


def test_while_a_provider_is_down_pushes_wait_without_using_up_receives(
    backend: Backend, store: NotificationStore
) -> None:
    fcm, apns = Provider(), Provider()
    fcm.down = answering("retry", 503, "UNAVAILABLE")
    worker = worker_for(backend, store, fcm=fcm, apns=apns, breaker_failures=1, breaker_seconds=30)
    send(backend, "push-queue", push_to("apns:a", "t1").to_json())
    worker.run_once()
    send(backend, "push-queue", push_to("apns:b", "t2").to_json(), PushId="offline:1")

    report = worker.run_once()

    assert worker.breakers["fcm"].state == "open"
    assert (report.sent, report.deferred, report.dead_lettered) == (1, 2, 0)
    assert [token for _, token in apns.asked] == ["a", "b"]
    stats = backend.queue("push-queue").stats()
    assert (stats.delayed, stats.visible, stats.in_flight) == (2, 0, 0)
    waiting = backend.queue("push-queue").peek(limit=10)
    # The first one was tried before the breaker opened; what is deferred counts no receive.
    assert [message.receive_count for message in waiting] == [1, 0]
    assert [message.attributes for message in waiting].count({"PushId": "offline:1"}) == 1


def test_with_all_providers_down_nothing_is_received_and_a_probe_brings_everything_back(
    backend: Backend, store: NotificationStore
) -> None:
    fcm = Provider()
    fcm.down = answering("retry", None, "ConnectError")
    worker = worker_for(backend, store, fcm=fcm, breaker_failures=2, breaker_seconds=0.3)
    send(backend, "push-queue", *(push_to(f"t{n}").to_json() for n in range(12)))

    eventually(lambda: worker.run_once().deferred > 0)
    while_open = worker.run_once() if worker.breakers["fcm"].state == "open" else WorkerReport()
    fcm.down = None
    eventually(lambda: worker.run_once() == WorkerReport() and held(backend, "push-queue") == 0)

    assert while_open == WorkerReport()
    assert {token for _, token in fcm.asked} == {f"t{n}" for n in range(12)}
    assert held(backend, "push-dlq") == 0


def test_a_push_that_waited_too_long_for_its_provider_is_stale(backend: Backend, store: NotificationStore) -> None:
    fcm, apns = Provider(), Provider()
    fcm.down = answering("retry", 503)
    old = datetime.now(UTC) - timedelta(days=4)
    worker = worker_for(backend, store, fcm=fcm, apns=apns, breaker_failures=1)
    send(backend, "push-queue", push_to("t1").to_json())
    worker.run_once()
    send(backend, "push-queue", push_to("t2", at=old).to_json())

    worker.run_once()

    ((_, marker),) = dead(backend, "push-dlq")
    assert marker.reason == "stale"
    assert str(marker.error).endswith("1 token open")


def test_while_the_database_is_down_messages_come_again_and_nothing_is_pushed(
    backend: Backend, store: NotificationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.register_device("ann", "t1")
    fcm = Provider()
    worker = worker_for(backend, store, fcm=fcm)
    send(backend, "offline-queue", missed().to_json())
    keep = store.keep

    def fail(*_: object) -> Any:
        raise Unavailable("the database is down")

    monkeypatch.setattr(store, "keep", fail)
    down = [worker.run_once(), worker.run_once()]
    monkeypatch.setattr(store, "keep", keep)
    back = worker.run_once()

    assert [report.retried for report in down] == [1, 1]
    assert (back.stored, back.sent) == (1, 1)


def test_without_a_sender_pushes_are_queued_and_left_alone(backend: Backend, store: NotificationStore) -> None:
    store.register_device("ann", "t1")
    send(backend, "offline-queue", missed().to_json())

    report = worker_for(backend, store).run_once()

    assert report == WorkerReport(stored=1, relayed=1)
    assert backend.queue("push-queue").stats().visible == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": 11}, "batch"),
        ({"concurrency": 0}, "concurrency"),
        ({"wait": 21}, "wait"),
        ({"retry_delays": (-1,)}, "retry_delays"),
        ({"breaker_failures": 0}, "breaker_failures"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    backend: Backend, store: NotificationStore, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        worker_for(backend, store, fcm=Provider(), **options)

    assert caught.value.field == field


def test_work_that_takes_longer_than_the_lease_keeps_its_message(backend: Backend, store: NotificationStore) -> None:
    class Slow(Provider):
        def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
            time.sleep(4)
            return super().send(push, token, push_id=push_id)

    fcm = Slow()
    worker = worker_for(backend, store, fcm=fcm, visibility=3)
    send(backend, "push-queue", push_to("t1").to_json())

    worker.run_once()

    assert worker.run_once(wait=0.1) == WorkerReport()
    assert len(fcm.asked) == 1


def test_a_database_in_the_engines_own_file_is_refused(tmp_path: Path, store: NotificationStore) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "chat.db")
    with connect("memory://") as backend:
        backend_url = f"sqlite:///{tmp_path}/link.db"

        class Elsewhere:
            url = backend_url
            queue, queue_spec = backend.queue, backend.queue_spec

        with pytest.raises(ConfigurationError, match=r"chat.db is the backend's own file .*chat.db"):
            elsewhere: Any = Elsewhere()
            NotificationWorker(elsewhere, store, push_queue=None, offline_queue=None)


def test_a_message_that_cannot_be_stored_does_not_fail_those_beside_it(
    backend: Backend, store: NotificationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = store.keep

    def refuse_one(messages: Any, compose: Any) -> Any:
        if any(message.messageId == "m3" for message in messages):
            raise ValueError("no room for m3")
        return keep(messages, compose)

    monkeypatch.setattr(store, "keep", refuse_one)
    worker = worker_for(backend, store)
    send(backend, "offline-queue", *(missed(f"m{n}").to_json() for n in range(10)))

    reports = [worker.run_once() for _ in range(3)]

    assert [report.stored for report in reports] == [9, 0, 0]
    assert [report.dead_lettered for report in reports] == [0, 0, 1]
    ((_, marker),) = dead(backend, "offline-dlq")
    assert (marker.reason, str(marker.error).partition(" [")[0]) == ("handler_failed", "ValueError: no room for m3")


def test_dead_letters_go_where_they_were_told_when_the_queue_names_none(
    backend: Backend, store: NotificationStore
) -> None:
    backend.create_queue(QueueSpec("bare-queue"))
    send(backend, "bare-queue", "nonsense")

    report = worker_for(backend, store, push_queue="bare-queue", push_dlq="push-dlq", fcm=Provider()).run_once()

    ((_, marker),) = dead(backend, "push-dlq")
    assert report.dead_lettered == 1
    assert (marker.source, marker.reason) == ("bare-queue", "invalid")


def test_without_dead_letters_what_cannot_be_read_stays_in_the_queue(
    backend: Backend, store: NotificationStore
) -> None:
    backend.create_queue(QueueSpec("bare-queue"))
    send(backend, "bare-queue", "nonsense")

    report = worker_for(backend, store, push_queue="bare-queue", fcm=Provider()).run_once()

    assert report == WorkerReport(retried=1)
    assert held(backend, "bare-queue") == 1


def test_a_fifo_queue_is_refused(backend: Backend, store: NotificationStore) -> None:
    backend.create_queue(QueueSpec("push.fifo", fifo=True))

    with pytest.raises(ConfigurationError, match=r"push_queue: 'push\.fifo' is FIFO"):
        worker_for(backend, store, push_queue="push.fifo")


def test_a_message_that_went_well_does_not_overwrite_that_the_database_failed(
    backend: Backend, store: NotificationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bool] = []
    watched = property(lambda worker: False, lambda worker, value: written.append(value))
    monkeypatch.setattr(NotificationWorker, "_database_failed", watched, raising=False)
    worker = worker_for(backend, store, fcm=Provider())
    send(backend, "offline-queue", missed().to_json())

    worker.run_once()

    assert written == [False]


def test_a_worker_that_is_interrupted_leaves_no_thread_at_work(backend: Backend, store: NotificationStore) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return super().wait(timeout)

    stop = Interrupted()
    before = set(threading.enumerate())

    with pytest.raises(KeyboardInterrupt):
        worker_for(backend, store, fcm=Provider()).run(stop)

    stop.set()
    eventually(lambda: not [thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()])
