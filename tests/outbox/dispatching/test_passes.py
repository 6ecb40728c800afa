"""One pass after another: what is published, in which order, and what is written about it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder, Traits, failing, failing_times, number_of
from tests.outbox.fixtures import OutboxFixture, an_event
from tests.waiting import eventually

from postroad import OutgoingMessage
from postroad.errors import InvalidMessage, RowRejected, Unavailable
from postroad.outbox import DispatchReport


def test_a_pass_publishes_what_is_due_and_marks_it_sent(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    events = [fixture.add(key={"transferId": f"tr_{n}"}, payload={"n": n}) for n in range(3)]
    fixture.set(events[0], lasterror="TimeoutError: no answer", updatedat="2020-01-01T00:00:00.000Z")

    report = dispatcher_of(fixture.outbox, recorder).run_once()

    assert report == DispatchReport(claimed=3, sent=3)
    assert {event.event_id for event in recorder.events()} == {event.event_id for event in events}
    row = fixture.outbox.get(events[0].event_id)
    assert row is not None
    assert (row.state, row.attempts, row.last_error) == ("SENT", 1, None)
    assert row.updated_at >= row.created_at


def test_a_key_is_published_in_the_order_of_its_commits(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    for n in range(120):
        fixture.add(payload={"n": n})

    report = dispatcher_of(fixture.outbox, recorder).drain()

    assert report.sent == 120
    assert recorder.numbers() == list(range(120))
    assert all(len(call) == 1 for call in recorder.calls)


def test_calls_hold_one_message_of_a_key_and_as_many_keys_as_fit(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    for n in range(60):
        fixture.add(key={"transferId": f"tr_{n % 20}"}, payload={"n": n})

    dispatcher_of(fixture.outbox, recorder).drain()

    assert all(len({message.group for message in call}) == len(call) <= 10 for call in recorder.calls)
    assert len(recorder.calls) < 20
    assert all(recorder.numbers(f"tr_{n}") == [n, n + 20, n + 40] for n in range(20))


def test_as_many_calls_as_allowed_are_made_at_once_and_no_more(
    on_sqlite: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    together, lock, running = threading.Barrier(3, timeout=120), threading.Lock(), [0, 0]

    def refuse(messages: Sequence[OutgoingMessage]) -> None:
        with lock:
            running[:] = running[0] + 1, max(running[0] + 1, running[1])
        together.wait()
        with lock:
            running[0] -= 1

    for n in range(12):
        on_sqlite.add(key={"transferId": f"tr_{n}"}, payload={"n": n})

    report = dispatcher_of(
        on_sqlite.outbox, Recorder(refuse=refuse), replace(QUICK, concurrency=3, publish_batch=1)
    ).drain()

    assert report.sent == 12
    assert running == [0, 3]


def test_a_publisher_whose_batches_are_one_step_gets_several_messages_of_a_key_at_once(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    recorder = Recorder(traits=Traits(atomic_batch=True))
    for n in range(25):
        fixture.add(payload={"n": n})

    dispatcher_of(fixture.outbox, recorder).run_once()

    assert [len(call) for call in recorder.calls] == [10, 10, 5]
    assert recorder.numbers() == list(range(25))


def test_a_message_carries_its_event_and_what_subscriptions_filter_on(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    event = fixture.add(tenant_id="tnt_1", traceparent=trace)

    dispatcher_of(fixture.outbox, recorder).run_once()

    message = recorder.published[0]
    assert message.body == event.to_json()
    assert (message.group, message.dedup_id) == ("tnt_1:tr_1", str(event.event_id))
    assert message.attributes == {
        "EventType": "transfers.submitted",
        "EventId": str(event.event_id),
        "Seq": "1",
        "TenantId": "tnt_1",
        "TraceParent": trace,
        "PublisherId": "default",
    }


def test_another_rendering_keeps_the_event_id_for_deduplication(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    event = fixture.add()

    dispatcher_of(fixture.outbox, recorder, render=lambda event: OutgoingMessage(event.type, group="all")).run_once()

    assert recorder.published == [OutgoingMessage("transfers.submitted", group="all", dedup_id=str(event.event_id))]


def test_further_fields_of_a_stored_envelope_travel_on(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    event = fixture.add()
    stored = msgspec.json.decode(event.to_json())
    stored["envelope"]["origin"] = "by hand"
    fixture.run("UPDATE outbox SET payload = ?", msgspec.json.encode(stored).decode())

    dispatcher_of(fixture.outbox, recorder).run_once()

    assert list(msgspec.json.decode(recorder.published[0].body)) == ["envelope", "key", "payload"]
    assert msgspec.json.decode(recorder.published[0].body) == stored


def test_a_row_that_plain_sql_gave_an_empty_lane_is_published(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    event = an_event()
    insert = "INSERT INTO outbox (id, eventtype, payload, event_id, lane) VALUES (?, ?, ?, ?, '')"
    fixture.run(insert, str(event.event_id), event.type, event.to_json().decode(), str(event.event_id))

    dispatcher_of(fixture.outbox, recorder).drain()

    assert [message.group for message in recorder.published] == ["tr_1"]


def test_a_failed_message_holds_back_its_key_and_no_other(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    recorder = Recorder(fail=failing(1))
    held = [fixture.add(payload={"n": n}) for n in (1, 2)]
    free = fixture.add(key={"transferId": "tr_2"}, payload={"n": 3})

    report = dispatcher_of(fixture.outbox, recorder, replace(QUICK, backoff=(60,))).drain()

    assert (report.sent, report.retried, report.held) == (1, 1, 1)
    assert [event.event_id for event in recorder.events()] == [free.event_id]
    first, second = (fixture.outbox.get(event.event_id) for event in held)
    assert first is not None
    assert second is not None
    assert (first.state, first.attempts, first.last_error) == ("PENDING", 1, "TimeoutError: no answer")
    assert first.next_attempt > first.updated_at
    assert (second.state, second.attempts, second.last_error) == ("PENDING", 0, None)


def test_a_message_that_fails_for_a_while_is_published_before_those_behind_it(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    recorder = Recorder(fail=failing_times(1, 3, Unavailable("gone")))
    for n in (1, 2, 3):
        fixture.add(payload={"n": n})
    dispatcher = dispatcher_of(fixture.outbox, recorder)

    dispatcher.start()

    eventually(lambda: len(recorder.published) == 3)
    dispatcher.stop()
    assert recorder.numbers() == [1, 2, 3]
    assert fixture.run("SELECT attempts FROM outbox ORDER BY seq") == [(4,), (1,), (1,)]


def test_after_the_last_attempt_the_row_is_failed_and_was_tried_exactly_so_often(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    recorder = Recorder(fail=failing(1))
    event = fixture.add(payload={"n": 1})
    dispatcher = dispatcher_of(fixture.outbox, recorder, replace(QUICK, retry_max=3, backoff=(0,)))

    report = dispatcher.drain()

    row = fixture.outbox.get(event.event_id)
    assert row is not None
    assert (row.state, row.attempts, len(recorder.calls)) == ("FAILED", 3, 3)
    assert (report.retried, report.failed) == (2, 1)


def test_a_failed_attempt_writes_when_the_next_one_is_due(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    event = fixture.add(payload={"n": 1})
    dispatcher = dispatcher_of(fixture.outbox, Recorder(fail=failing(1)), replace(QUICK, backoff=(600, 6_000, 60_000)))

    for attempts, pause in enumerate((600, 6_000, 60_000, 60_000), 1):
        dispatcher.run_once()

        row = fixture.outbox.get(event.event_id)
        assert row is not None
        assert (row.state, row.attempts, row.last_error) == ("PENDING", attempts, "TimeoutError: no answer")
        assert pause - 0.01 <= (row.next_attempt - row.updated_at).total_seconds() < 1.5 * pause
        fixture.set(event, next_attempt="2020-01-01T00:00:00.000Z")


@pytest.mark.parametrize("attempts", [-5, 0])
def test_negative_attempts_count_as_none(fixture: OutboxFixture, dispatcher_of: MakeDispatcher, attempts: int) -> None:
    event = fixture.add(payload={"n": 1})
    fixture.set(event, attempts=attempts)

    dispatcher_of(fixture.outbox, Recorder(fail=failing(1))).run_once()

    assert fixture.run("SELECT attempts FROM outbox") == [(1,)]


def test_a_rejected_message_is_failed_at_once(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    event = fixture.add(payload={"n": 1})

    report = dispatcher_of(fixture.outbox, Recorder(fail=failing(1, error=RowRejected("bad body")))).run_once()

    row = fixture.outbox.get(event.event_id)
    assert row is not None
    assert (row.state, row.attempts, row.last_error) == ("FAILED", 1, "rejected: bad body")
    assert report.failed == 1


def test_a_call_refused_for_one_message_is_repeated_one_by_one(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    poisoned = Recorder(
        refuse=lambda messages: InvalidMessage("messages[1].body: bad") if 2 in map(number_of, messages) else None
    )
    for n in (1, 2, 3):
        fixture.add(key={"transferId": f"tr_{n}"}, payload={"n": n})

    report = dispatcher_of(fixture.outbox, poisoned).run_once()

    assert (report.sent, report.failed) == (2, 1)
    assert fixture.run("SELECT state, attempts FROM outbox ORDER BY seq") == [("SENT", 1), ("FAILED", 1), ("SENT", 1)]


def test_only_the_entry_of_a_batch_that_failed_is_tried_again(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    recorder = Recorder(fail=failing(2))
    for n in (1, 2, 3):
        fixture.add(key={"transferId": f"tr_{n}"}, payload={"n": n})

    report = dispatcher_of(fixture.outbox, recorder, replace(QUICK, backoff=(60,))).drain()

    assert len(recorder.calls) == 1
    assert (report.sent, report.retried) == (2, 1)
