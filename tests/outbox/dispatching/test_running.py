"""A dispatcher that runs: how it is woken, stopped, watched, and how it survives its database."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder, failing
from tests.outbox.fixtures import OutboxFixture, an_event
from tests.pooler import pooler
from tests.waiting import eventually

from postroad import DomainEvent, OutgoingMessage, SendResult
from postroad.connections import PostgresDatabase
from postroad.errors import ConfigurationError, SchemaMismatch, TargetUnavailable, Unavailable
from postroad.outbox import DispatcherConfig, Outbox
from postroad.outbox.dispatching import postgres

SELDOM = replace(QUICK, poll=60)


class Slow:
    """Publishes when it is let."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        self.entered.set()
        self.go_on.wait(120)
        return [SendResult(ok=True) for _ in messages]


def test_a_commit_wakes_an_idle_dispatcher(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    dispatcher = dispatcher_of(fixture.outbox, recorder, SELDOM)
    dispatcher.start()
    eventually(lambda: dispatcher.ready)

    for n in range(3):
        fixture.add(payload={"n": n})
        eventually(lambda n=n: len(recorder.published) == n + 1)  # type: ignore[misc]


def test_a_commit_that_fails_keeps_no_other_from_waking_a_dispatcher(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    on_postgres.run("CREATE TABLE parents (id int PRIMARY KEY)")
    on_postgres.run("CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
    dispatcher = dispatcher_of(on_postgres.outbox, recorder, replace(QUICK, poll=600.0))
    dispatcher.start()
    eventually(lambda: dispatcher.ready)

    for number in range(1, 6):
        with on_postgres.connection() as failing, on_postgres.connection() as other:
            on_postgres.outbox.add(failing, an_event(key={"transferId": f"failing_{number}"}))
            failing.execute("INSERT INTO children VALUES (1)")
            on_postgres.outbox.add(other, an_event(key={"transferId": f"other_{number}"}))
            with pytest.raises(psycopg.errors.ForeignKeyViolation):
                failing.commit()
            other.commit()

        eventually(lambda number=number: len(recorder.published) == number)  # type: ignore[misc]


def test_a_commit_that_takes_long_is_found_although_another_one_woke_the_dispatcher(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    on_postgres.run("CREATE TABLE slow (id int)")
    on_postgres.run(
        "CREATE FUNCTION wait_a_while() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END'"
    )
    on_postgres.run(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait_a_while()"
    )
    dispatcher = dispatcher_of(on_postgres.outbox, recorder, replace(QUICK, poll=600.0))
    dispatcher.start()
    eventually(lambda: dispatcher.ready)
    # The next commit finds that somebody has promised to look again.
    on_postgres.run(
        "SELECT setval('outbox_wake', (extract(epoch FROM clock_timestamp()) * 1000)::bigint / 2 * 2 + 100)"
    )
    with on_postgres.connection() as connection:
        on_postgres.outbox.add(connection, an_event())
        connection.execute("INSERT INTO slow VALUES (1)")
        with ThreadPoolExecutor() as threads:
            committing = threads.submit(connection.commit)
            on_postgres.run("SELECT pg_notify('postroad_outbox', 'outbox')")
            committing.result()

    eventually(lambda: len(recorder.published) == 1)


def test_without_listening_polling_finds_everything(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    dispatcher = dispatcher_of(fixture.outbox, recorder, replace(QUICK, listen=False))
    dispatcher.start()

    fixture.add()

    eventually(lambda: len(recorder.published) == 1)


def test_behind_a_pooler_that_swallows_notifications_it_warns_once_and_polls(
    on_postgres: OutboxFixture,
    recorder: Recorder,
    dispatcher_of: MakeDispatcher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(postgres, "_LISTEN", b"LISTEN elsewhere")
    monkeypatch.setattr(postgres, "_TEST_SECONDS", 0.1)
    dispatcher = dispatcher_of(on_postgres.outbox, recorder)

    dispatcher.start()
    on_postgres.add()

    eventually(lambda: len(recorder.published) == 1)
    assert caplog.text.count("outbox_listen_unavailable") == 1


def test_behind_a_pooler_that_shares_its_connections_everything_is_published_in_order(
    on_postgres: OutboxFixture,
    recorder: Recorder,
    dispatcher_of: MakeDispatcher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(postgres, "_TEST_SECONDS", 0.1)
    for n in range(12):
        on_postgres.add(key={"transferId": f"tr_{n % 3}"}, payload={"n": n})
    with pooler(on_postgres.dsn, size=2) as dsn:
        pooled = Outbox.postgres(dsn)
        dispatchers = [dispatcher_of(pooled, recorder) for _ in range(2)]
        for dispatcher in dispatchers:
            dispatcher.start()

        eventually(lambda: pooled.status().sent == 12)

        for dispatcher in dispatchers:
            dispatcher.stop()
        pooled.close()
    for lane in range(3):
        assert recorder.numbers(f"tr_{lane}") == list(range(lane, 12, 3))
    assert "outbox_listen_unavailable" in caplog.text


def test_a_stop_event_ends_a_drain_whose_target_refuses_everything(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    fixture.add()
    down = Recorder(fail=lambda _: TargetUnavailable("no such topic"))
    dispatcher = dispatcher_of(fixture.outbox, down, replace(QUICK, target_pause=60))
    stop = threading.Event()
    draining = threading.Thread(target=dispatcher.drain, args=(3_600,), kwargs={"stop": stop})

    draining.start()
    eventually(lambda: fixture.outbox.status().target_error is not None)
    stop.set()
    draining.join(120)

    assert not draining.is_alive()
    assert fixture.run("SELECT state, attempts, lease_owner FROM outbox") == [("PENDING", 0, None)]


def test_stopping_lets_calls_end_and_gives_back_the_rest(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    slow = Slow()
    for n in range(3):
        fixture.add(payload={"n": n})
    dispatcher = dispatcher_of(fixture.outbox, slow)
    dispatcher.start()
    assert slow.entered.wait(120)

    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    slow.go_on.set()
    stopping.join()

    assert fixture.run("SELECT state, lease_owner FROM outbox ORDER BY seq") == [
        ("SENT", None),
        ("PENDING", None),
        ("PENDING", None),
    ]
    assert not dispatcher.ready


def test_a_call_that_does_not_end_keeps_its_lease_and_nobody_waits_for_it(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    slow = Slow()
    fixture.add()
    dispatcher = dispatcher_of(fixture.outbox, slow)
    dispatcher.start()
    assert slow.entered.wait(120)

    dispatcher.stop(timeout=0.1)

    [(state, owner)] = fixture.run("SELECT state, lease_owner FROM outbox")
    slow.go_on.set()
    assert state == "PENDING"
    assert owner is not None


def test_a_stop_event_of_the_caller_ends_a_run_with_its_report(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    fixture.add()
    stop = threading.Event()

    def stop_after_the_first() -> None:
        eventually(lambda: recorder.published)
        stop.set()

    stopping = threading.Thread(target=stop_after_the_first)
    stopping.start()

    report = dispatcher_of(fixture.outbox, recorder).run(stop)
    stopping.join()

    assert report.sent == 1


def test_a_dispatcher_works_for_one_caller_at_a_time(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    dispatcher = dispatcher_of(fixture.outbox, recorder)
    dispatcher.start()
    eventually(lambda: dispatcher.ready)

    with pytest.raises(ConfigurationError, match="at work already"):
        dispatcher.run_once()


def test_without_tables_it_does_not_start_and_names_the_remedy(
    postgres_dsn: str, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    outbox = Outbox.postgres(postgres_dsn)

    with pytest.raises(SchemaMismatch) as refused:
        dispatcher_of(outbox, recorder).start()

    outbox.close()
    assert "postroad outbox init" in refused.value.remedy


def test_newer_tables_are_left_alone(fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher) -> None:
    fixture.run("UPDATE outbox_meta SET version = 99")

    with pytest.raises(SchemaMismatch, match="99"):
        dispatcher_of(fixture.outbox, recorder).run_once()


def test_a_read_only_server_is_refused_at_the_start(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    on_postgres.add()
    name = on_postgres.run("SELECT current_database()")[0][0]
    on_postgres.run(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    read_only = Outbox.postgres(on_postgres.dsn)

    with pytest.raises(ConfigurationError, match="read-only"):
        dispatcher_of(read_only, recorder).start()

    read_only.close()


def test_cut_connections_are_made_anew_and_nothing_is_lost(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    dispatcher = dispatcher_of(on_postgres.outbox, recorder)
    dispatcher.start()
    for n in range(30):
        on_postgres.add(payload={"n": n})
        if n % 10 == 5:
            _cut_all_others(on_postgres.dsn)

    eventually(lambda: on_postgres.outbox.status().sent == 30)
    assert list(dict.fromkeys(recorder.numbers())) == list(range(30))
    eventually(lambda: dispatcher.ready)


def test_a_connection_that_is_cut_while_the_wake_up_begins_is_made_anew(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, was_cut = postgres.Listener._ask_for_quiet, threading.Event()

    def ask_over_a_cut_connection(listener: postgres.Listener, milliseconds: int) -> None:
        if not was_cut.is_set():
            _cut_all_others(on_postgres.dsn)
            was_cut.set()
        ask(listener, milliseconds)

    monkeypatch.setattr(postgres.Listener, "_ask_for_quiet", ask_over_a_cut_connection)
    dispatcher = dispatcher_of(on_postgres.outbox, recorder)
    dispatcher.start()
    assert was_cut.wait(120)
    on_postgres.add()

    eventually(lambda: on_postgres.outbox.status().sent == 1)


def test_after_an_error_that_nobody_expects_a_started_dispatcher_runs_again(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = dispatcher_of(fixture.outbox, recorder)
    claim, failed = dispatcher._store.claim, threading.Event()

    def fail_once(limit: int, **options: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        return claim(limit, **options)

    monkeypatch.setattr(dispatcher._store, "claim", fail_once)
    dispatcher.start()
    assert failed.wait(120)
    fixture.add()

    eventually(lambda: fixture.outbox.status().sent == 1)


def test_a_render_that_exits_fails_its_row_and_others_flow(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    def render(event: DomainEvent) -> OutgoingMessage:
        if event.payload["n"] == 1:
            raise SystemExit("no")
        return OutgoingMessage(event.to_json())

    dispatcher = dispatcher_of(fixture.outbox, recorder, replace(QUICK, retry_max=1), render=render)
    dispatcher.start()
    fixture.add(payload={"n": 1})
    fixture.add(key={"transferId": "tr_2"}, payload={"n": 2})

    eventually(lambda: (fixture.outbox.status().sent, fixture.outbox.status().failed) == (1, 1))


def test_an_open_transaction_holds_its_own_key_only(
    on_postgres: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    dispatcher = dispatcher_of(on_postgres.outbox, recorder)
    dispatcher.start()
    with on_postgres.connection() as connection:
        on_postgres.outbox.add(connection, an_event(payload={"n": 1}))
        on_postgres.add(key={"transferId": "tr_2"}, payload={"n": 2})

        eventually(lambda: recorder.numbers("tr_2") == [2])
        eventually(lambda: on_postgres.outbox.status().oldest_open_transaction_seconds > 0.05)
        waiting = recorder.numbers("tr_1")
        connection.commit()

    eventually(lambda: recorder.numbers("tr_1") == [1])
    assert waiting == []


def test_a_wrong_clock_changes_neither_leases_nor_due_times(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    slow = Slow()
    on_postgres.add(payload={"n": 1})
    dispatcher = dispatcher_of(on_postgres.outbox, slow)
    dispatcher.start()
    assert slow.entered.wait(120)

    [(lease,)] = on_postgres.run("SELECT extract(epoch FROM lease_until - now())::float8 FROM outbox")
    slow.go_on.set()

    assert 20 < lease <= 30


def test_the_figures_of_alarms_are_counted_when_somebody_looks(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    registry = CollectorRegistry()
    dispatcher = dispatcher_of(
        fixture.outbox, Recorder(fail=failing(2)), DispatcherConfig(retry_max=1), metrics=registry, service="cts"
    )
    for n in (1, 2):
        event = fixture.add(key={"transferId": f"tr_{n}"}, payload={"n": n})
        fixture.set(event, createdat="2020-01-01T00:00:00.000Z")
    fixture.set(fixture.add(key={"transferId": "tr_3"}), state="DONE")
    before = [_figure(registry, name) for name in ("event_outbox_backlog", "dead_letter_count")]
    lag = _figure(registry, "event_publish_lag_seconds")

    dispatcher.drain()

    eventually(lambda: _figure(registry, "event_outbox_backlog") == 0)
    assert before == [2, 1]
    assert lag > 86_400
    assert _figure(registry, "event_publish_lag_seconds") == 0
    assert _figure(registry, "dead_letter_count") == 2
    assert _figure(registry, "postroad_publish_seconds_count") == 1
    assert _figure(registry, "postroad_publish_seconds_sum") > 86_400


def _figure(registry: CollectorRegistry, name: str) -> float:
    [value] = [
        sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == name and sample.labels["service"] == "cts"
    ]
    return value


def _cut_all_others(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_dispatcher_whose_wake_up_cannot_be_tried_leaves_no_connection(
    on_postgres: OutboxFixture, dispatcher_of: MakeDispatcher, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: PostgresDatabase) -> None:
        raise Unavailable("too many connections")

    monkeypatch.setattr(PostgresDatabase, "transaction", refused)
    with pytest.raises(Unavailable) as raised:
        dispatcher_of(on_postgres.outbox, recorder).run()

    assert raised.tb is not None
    listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    eventually(lambda: on_postgres.run(listening) == [(0,)])
