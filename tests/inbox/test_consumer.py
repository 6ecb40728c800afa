"""Consumers: every event's effect once, whatever happens to handlers, messages and groups."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.inbox.fixtures import InboxFixture
from tests.inbox.mail import DEAD, FIFO, conflicts, drained, event, held, posting, send, send_body

from postroad import Backend, NonRetryable, Queue, QueueSpec, Retryable
from postroad.errors import ConfigurationError, SchemaMismatch
from postroad.inbox import Consumer, ConsumeReport, DomainEvent, EffectNotDone, Inbox, Windows
from postroad.queues.markers import read_dead


def test_an_event_is_handled_in_the_transaction_of_its_inbox_row(fixture: InboxFixture, queue: Queue) -> None:
    sent = event("tr_1")
    send(queue, sent)
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox)

    report = consumer.run_once()

    assert report == ConsumeReport(received=1, handled=1)
    assert fixture.times("tr_1") == 1
    assert fixture.inbox.processed("ledger", [sent.event_id]) == {sent.event_id}
    assert held(queue) == 0


def test_a_second_copy_is_acked_without_calling_the_handler(fixture: InboxFixture, queue: Queue) -> None:
    sent = event("tr_1")
    send(queue, sent)
    send(queue, sent, copy="again")
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox)

    report = drained(consumer, queue)

    assert report == ConsumeReport(received=2, handled=1, duplicates=1)
    assert fixture.times("tr_1") == 1


def test_a_copy_with_another_content_is_a_duplicate_that_is_counted(fixture: InboxFixture, queue: Queue) -> None:
    sent = event("tr_1", n=1)
    later = dataclasses.replace(sent, occurred_at=sent.occurred_at + timedelta(seconds=1))
    other = dataclasses.replace(sent, payload={"n": 2})
    consumer = Consumer(queue, posting(fixture), name="compared", inbox=fixture.inbox)

    seen: list[tuple[int, int, float]] = []
    for copy in (sent, later, other):
        before = conflicts("compared")
        send(queue, copy, copy=str(len(seen)))
        report = consumer.run_once()
        seen.append((report.handled, report.duplicates, conflicts("compared") - before))

    assert seen == [(1, 0, 0), (0, 1, 0), (0, 1, 1)]


def test_two_consumers_with_other_names_each_handle_every_event_once(fixture: InboxFixture, backend: Backend) -> None:
    queues = [backend.create_queue(QueueSpec(f"{name}.fifo", fifo=True)) for name in ("ledger", "projections")]
    sent = [event(f"tr_{n}") for n in range(3)]
    for queue in queues:
        send(queue, *sent)
        send(queue, *sent, copy="again")

    for queue in queues:
        consumer = Consumer(queue, posting(fixture), name=queue.name, inbox=fixture.inbox)
        assert drained(consumer, queue) == ConsumeReport(received=6, handled=3, duplicates=3)

    assert [fixture.times(f"tr_{n}") for n in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("error", [ValueError, EffectNotDone])
@pytest.mark.parametrize("effects", ["database", "external"])
def test_a_failure_is_logged_with_its_handler_and_at_level_debug_with_its_traceback(
    inbox: Inbox, queue: Queue, effects: Any, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    send(queue, event("tr_1"))

    def post(event: DomainEvent, given: Any) -> None:
        raise error("no such order, password=hunter2")

    consumer = Consumer(queue, post, name="ledger", inbox=inbox, effects=effects, on_unknown="retry")
    with caplog.at_level(logging.DEBUG, logger="postroad"):
        consumer.run_once()

    lines = {record.msg["event"]: record.msg for record in caplog.records if isinstance(record.msg, dict)}
    retried, traced = lines["consumer_retried"], lines["receiver_traceback"]
    assert (retried["attempt"], retried["retry_in_seconds"]) == (1, 0)
    assert retried["error"] == f"{error.__name__}: no such order, password=*** [test_consumer.py:post]"
    assert retried["message_id"] == traced["message_id"]
    assert retried["handler"] == f"{__name__}.{post.__qualname__}"
    assert "in post" in traced["traceback"]
    assert "hunter2" not in caplog.text


def test_a_dead_letter_is_logged_with_its_error_its_attempt_and_the_handler(
    fixture: InboxFixture, queue: Queue, dead_letters: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    send_body(queue, b"{")
    post = posting(fixture)

    Consumer(queue, post, name="ledger", inbox=fixture.inbox, dead_letters=dead_letters).run_once()

    (line,) = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert (line["event"], line["attempt"]) == ("consumer_dead_lettered", 1)
    assert line["handler"] == f"{post.__module__}.{post.__qualname__}"
    assert line["error"].startswith("InvalidMessage: ")


@pytest.mark.parametrize("given", [True, False])
def test_what_is_not_retryable_is_a_dead_letter_at_once(
    fixture: InboxFixture, queue: Queue, dead_letters: Queue, given: bool
) -> None:
    calls: list[str] = []
    send(queue, event("tr_1"))

    def refuse(event: DomainEvent, connection: Any) -> None:
        calls.append(event.key["transferId"])
        fixture.post(connection, event.key["transferId"])
        raise NonRetryable("there is no such account")

    consumer = Consumer(queue, refuse, name="ledger", inbox=fixture.inbox, dead_letters=dead_letters if given else None)

    report = consumer.run_once()

    assert report == ConsumeReport(received=1, dead=1)
    assert (calls, fixture.times("tr_1"), held(queue)) == (["tr_1"], 0, 0)
    (letter,) = dead_letters.peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert marker.reason == "not_retryable"
    assert str(marker.error).startswith("NonRetryable: there is no such account")


def test_a_handler_says_when_its_event_comes_again(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1"))

    def later(event: DomainEvent, connection: Any) -> None:
        raise Retryable("the bank is closed", after=3_600)

    consumer = Consumer(queue, later, name="ledger", inbox=fixture.inbox)
    consumer.run_once()
    again = consumer.run_once()

    # Without `after` the first retry would come at once.
    assert again == ConsumeReport()
    assert held(queue) == 1


def test_an_exception_rolls_back_and_the_event_comes_again(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1"))
    attempts = []

    def handler(event: DomainEvent, connection: Any) -> None:
        fixture.post(connection, event.key["transferId"])
        attempts.append(event)
        if len(attempts) == 1:
            raise RuntimeError("the rail was closed")

    consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox)

    first, second = consumer.run_once(), consumer.run_once(wait=2.0)

    assert first == ConsumeReport(received=1, failed=1)
    assert second == ConsumeReport(received=1, handled=1)
    assert fixture.times("tr_1") == 1


def test_an_error_of_the_database_that_a_handler_swallows_loses_nothing(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1"))
    attempts = []

    def handler(event: DomainEvent, connection: Any) -> None:
        fixture.post(connection, event.key["transferId"])
        attempts.append(event)
        if len(attempts) == 1:
            try:
                connection.execute("SELECT * FROM nowhere")
            except Exception:
                if "sqlite" in fixture.dsn:
                    connection.execute("ROLLBACK")

    consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox)

    first, second = consumer.run_once(), consumer.run_once(wait=2.0)

    assert (first.failed, second.handled) == (1, 1)
    assert fixture.times("tr_1") == 1


def test_a_failing_event_holds_back_its_own_group_and_no_other(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1", n=1), event("tr_1", n=2), event("tr_2", n=1), event("tr_1", n=3))
    seen: list[tuple[str, int]] = []
    fails = [True]

    def handler(event: DomainEvent, connection: Any) -> None:
        if event.key["transferId"] == "tr_1" and fails:
            fails.clear()
            raise RuntimeError("not now")
        seen.append((event.key["transferId"], event.payload["n"]))

    consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox)

    first = consumer.run_once()
    rest = drained(consumer, queue)

    assert first == ConsumeReport(received=4, handled=1, failed=1, released=2)
    assert seen == [("tr_2", 1), ("tr_1", 1), ("tr_1", 2), ("tr_1", 3)]
    assert rest.handled == 3


@pytest.mark.parametrize("receives", [1, 3])
def test_failing_again_and_again_ends_in_the_dead_letters_and_the_group_goes_on(
    fixture: InboxFixture, backend: Backend, receives: int
) -> None:
    dead = backend.create_queue(DEAD)
    queue = backend.create_queue(dataclasses.replace(FIFO, visibility=5, max_receives=receives))
    send(queue, event("tr_1", poison=True), event("tr_1", poison=False))

    def handler(event: DomainEvent, connection: Any) -> None:
        if event.payload["poison"]:
            raise RuntimeError("never")
        fixture.post(connection, "good")

    report = drained(Consumer(queue, handler, name="ledger", inbox=fixture.inbox), queue)

    assert (report.failed, report.handled) == (receives, 1)
    assert fixture.times("good") == 1
    (letter,) = dead.peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert (marker.source, marker.receives) == (queue.name, receives)


def test_groups_are_handled_in_parallel_and_each_in_order(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, *(event(f"tr_{n % 3}", n=n) for n in range(9)))
    together, seen, lock = threading.Barrier(3, timeout=120), [], threading.Lock()

    def handler(event: DomainEvent, connection: Any) -> None:
        if event.payload["n"] < 3:
            together.wait()
        with lock:
            seen.append((event.key["transferId"], event.payload["n"]))

    # The transaction is opened by nobody: three at once do not fit into one SQLite file.
    consumer = Consumer(queue, handler, name="ledger", inbox=fixture.inbox, concurrency=3, effects="external")

    report = consumer.run_once()

    assert report.handled == 9
    for transfer in ("tr_0", "tr_1", "tr_2"):
        numbers = [n for name, n in seen if name == transfer]
        assert numbers == sorted(numbers)


MALFORMED = {
    "no json": "hello",
    "a list": "[]",
    "an empty object": "{}",
    "deep": "[" * 1_000_000,
    "no event id": json.dumps({"envelope": {"type": "a.b"}, "key": {}, "payload": {}}),
    "no type": json.dumps({"envelope": {"eventId": "0190b5b8-0000-7000-8000-000000000001"}, "key": {}, "payload": {}}),
    "an id that is none": json.dumps({"envelope": {"eventId": "x", "type": "a.b"}, "key": {}, "payload": {}}),
    "a time outside the calendar": json.dumps(
        {
            "envelope": {
                "eventId": "0190b5b8-0000-7000-8000-000000000001",
                "type": "a.b",
                "occurredAt": "0001-01-01T00:00:00+05:00",
            },
            "key": {},
            "payload": {},
        }
    ),
    "sns around no json": json.dumps({"Type": "Notification", "Message": "hello"}),
    "sns around nothing": json.dumps({"Type": "Notification", "Message": ""}),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_event_goes_to_the_dead_letters_with_the_reason(
    fixture: InboxFixture, queue: Queue, dead_letters: Queue, body: str
) -> None:
    send_body(queue, body)
    send(queue, event("g"))
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox, dead_letters=dead_letters)

    report = consumer.run_once()

    assert report == ConsumeReport(received=2, handled=1, dead=1)
    (letter,) = dead_letters.peek()
    assert letter.body.decode() == body
    marker = json.loads(letter.attributes["DeadLetter"])
    assert marker["reason"] == "malformed"
    assert set(marker) == {"source", "receives", "error", "type", "at", "reason"}


def test_without_dead_letters_what_is_no_event_is_left_to_the_queue_s_own(
    fixture: InboxFixture, backend: Backend
) -> None:
    dead = backend.create_queue(DEAD)
    queue = backend.create_queue(dataclasses.replace(FIFO, visibility=0.1, max_receives=2))
    send_body(queue, "{}")

    report = drained(Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox), queue)

    assert report == ConsumeReport(received=2, failed=2)
    assert len(dead.peek()) == 1


def test_a_body_wrapped_by_sns_is_an_event_too(fixture: InboxFixture, queue: Queue) -> None:
    wrapped = {"Type": "Notification", "MessageId": "m", "Message": event("tr_1").to_json().decode()}
    send_body(queue, json.dumps(wrapped))
    send(queue, event("tr_2", text='"Notification"'))
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox)

    assert consumer.run_once().handled == 2
    assert (fixture.times("tr_1"), fixture.times("tr_2")) == (1, 1)


def test_types_that_nobody_wants_are_acked_and_counted(fixture: InboxFixture, queue: Queue) -> None:
    types = ["events.transfers.settled", "events.transfers.accepted", "directory.route.updated", "directory.routes"]
    send(queue, *(event(type, type=type) for type in types))
    wanted = ("events.transfers.settled", "directory.route.*")
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox, types=wanted)

    report = consumer.run_once()

    assert report == ConsumeReport(received=4, handled=2, ignored=2)
    assert [fixture.times(type) for type in types] == [1, 0, 1, 0]
    assert held(queue) == 0


def test_a_long_handler_keeps_its_message_and_those_waiting_behind_it(fixture: InboxFixture, backend: Backend) -> None:
    queue = backend.create_queue(QueueSpec("slow.fifo", fifo=True, visibility=3))
    send(queue, event("tr_1", n=1), event("tr_1", n=2), event("tr_2", n=3))
    stolen: list[Any] = []

    def handler(event: DomainEvent, connection: Any) -> None:
        if event.payload["n"] == 1:
            stolen.extend(queue.receive(max_messages=10, wait=4))
        fixture.post(connection, "handled")

    report = Consumer(queue, handler, name="ledger", inbox=fixture.inbox).run_once()

    assert stolen == []
    assert report == ConsumeReport(received=3, handled=3)
    assert fixture.times("handled") == 3


def test_a_transaction_of_the_application_s_own_is_used(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1"))
    used: list[Any] = []

    @contextmanager
    def own() -> Iterator[Any]:
        with closing(fixture.connect()) as connection:
            used.append(connection)
            with connection:
                yield connection

    without_dsn = Inbox.sqlite() if "sqlite" in fixture.dsn else Inbox.postgres()
    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=without_dsn, transaction=own)

    assert consumer.run_once().handled == 1
    assert used
    assert fixture.times("tr_1") == 1


def test_a_transaction_that_does_not_commit_acks_nothing(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1"))

    @contextmanager
    def forgetful() -> Iterator[Any]:
        with closing(fixture.connect()) as connection:
            yield connection

    consumer = Consumer(queue, posting(fixture), name="ledger", inbox=fixture.inbox, transaction=forgetful)
    report = consumer.run_once()

    assert report == ConsumeReport(received=1, failed=1)
    assert held(queue) == 1


def test_a_transaction_that_swallows_errors_acks_nothing(fixture: InboxFixture, queue: Queue) -> None:
    send(queue, event("tr_1"))

    @contextmanager
    def silent() -> Iterator[Any]:
        with suppress(ZeroDivisionError), fixture.inbox.transaction() as connection:
            yield connection

    def handler(event: DomainEvent, connection: Any) -> None:
        raise ZeroDivisionError

    report = Consumer(queue, handler, name="ledger", inbox=fixture.inbox, transaction=silent).run_once()

    assert report == ConsumeReport(received=1, failed=1)
    assert held(queue) == 1


@pytest.mark.parametrize("effects", ["database", "external"])
@pytest.mark.parametrize("unstarted", ["coroutine", "generator", "asynchronous generator"])
def test_work_that_a_handler_returns_instead_of_doing_it_is_its_failure(
    fixture: InboxFixture, queue: Queue, unstarted: str, effects: Any
) -> None:
    send(queue, event("tr_1"))
    returned = {"coroutine": _coroutine, "generator": _generator, "asynchronous generator": _asynchronous_generator}

    def handler(event: DomainEvent, given: Any) -> Any:
        return returned[unstarted](event, given)

    report = Consumer(queue, handler, name="ledger", inbox=fixture.inbox, effects=effects).run_once()

    assert report == ConsumeReport(received=1, failed=1)
    assert held(queue) == 1


def test_a_consumer_whose_database_has_no_tables_refuses_to_start(queue: Queue, tmp_path: Any) -> None:
    (tmp_path / "empty.db").touch()
    with Inbox.sqlite(tmp_path / "empty.db") as inbox:
        consumer = Consumer(queue, lambda event, connection: None, name="ledger", inbox=inbox)

        with pytest.raises(SchemaMismatch, match="missing"):
            consumer.start()
        with pytest.raises(SchemaMismatch, match="missing"):
            consumer.run()


def test_an_inbox_that_forgets_too_early_is_refused_with_both_figures(queue: Queue) -> None:
    inbox = Inbox.sqlite("app.db", retention=timedelta(days=7))

    with pytest.raises(ConfigurationError, match=r"604800.*1571872"):
        Consumer(queue, lambda event, connection: None, name="ledger", inbox=inbox)
    Consumer(queue, lambda event, connection: None, name="ledger", inbox=inbox, windows=Windows(60, 60, 60, 60))


def test_windows_add_up() -> None:
    assert Windows().required == 345_600 + 1_209_600 + 16_672
    assert Windows(1, 2, 3, 4).required == 10
    with pytest.raises(ConfigurationError, match="redrive_delay"):
        Windows(redrive_delay=-1)


async def _coroutine(event: DomainEvent, connection: Any) -> None: ...


def _generator(event: DomainEvent, connection: Any) -> Iterator[None]:
    yield


async def _asynchronous_generator(event: DomainEvent, connection: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("concurrency", 0),
        ("concurrency", True),
        ("effects", "both"),
        ("on_unknown", "drop"),
        ("types", "orders.placed"),
        ("types", []),
        ("types", ["orders placed"]),
        ("types", ["*"]),
    ],
)
def test_what_cannot_work_is_refused_at_construction(queue: Queue, field: str, value: Any) -> None:
    given: dict[str, Any] = {"name": "ledger", "inbox": Inbox.sqlite("app.db"), field: value}

    with pytest.raises(ConfigurationError, match=field):
        Consumer(queue, lambda event, connection: None, **given)


def test_a_function_that_does_its_work_later_is_no_handler(queue: Queue) -> None:
    for handler in (_coroutine, _generator, _asynchronous_generator):
        with pytest.raises(ConfigurationError, match="handler"):
            Consumer(queue, handler, name="ledger", inbox=Inbox.sqlite("app.db"))


def test_an_inbox_without_connections_needs_a_transaction(queue: Queue) -> None:
    with pytest.raises(ConfigurationError, match="inbox"):
        Consumer(queue, lambda event, connection: None, name="ledger", inbox=Inbox.postgres())
