"""A target that refuses everything costs no row an attempt, and is taken up again by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder
from tests.outbox.fixtures import OutboxFixture
from tests.waiting import eventually

from postroad import QueueSpec, connect
from postroad.errors import ConfigurationError, NotPermitted, TargetUnavailable, Throttled, TopicNotFound


@pytest.mark.parametrize(
    "error", [TopicNotFound("no topic"), NotPermitted("denied"), Throttled("slow down"), TargetUnavailable("gone")]
)
def test_a_refusing_target_pauses_all_keys_and_fails_no_row(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher, error: Exception
) -> None:
    recorder = Recorder(refuse=lambda messages: error)
    for n in range(30):
        fixture.add(key={"transferId": f"tr_{n}"}, payload={"n": n})
    config = replace(QUICK, concurrency=1, target_pause=30)

    report = dispatcher_of(fixture.outbox, recorder, config).run_once()

    assert (report.claimed, report.held, len(recorder.calls)) == (30, 30, 1)
    rows = fixture.run("SELECT state, attempts, lasterror FROM outbox ORDER BY seq")
    assert {(state, attempts) for state, attempts, _ in rows} == {("PENDING", 0)}
    assert [text for _, _, text in rows if text is not None] == [f"{type(error).__name__}: {error}"] * 10
    assert fixture.outbox.status().target_error == f"{type(error).__name__}: {error}"


def test_one_message_probes_and_when_it_gets_through_all_flow(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    down = True
    recorder = Recorder(refuse=lambda messages: TargetUnavailable("gone", retry_after=0.02) if down else None)
    for n in range(30):
        fixture.add(key={"transferId": f"tr_{n}"}, payload={"n": n})
    dispatcher = dispatcher_of(fixture.outbox, recorder, replace(QUICK, concurrency=1))
    dispatcher.start()
    eventually(lambda: len(recorder.calls) > 3)
    not_ready = not dispatcher.ready
    probes = {len(call) for call in recorder.calls[1:]}

    down = False

    eventually(lambda: len(recorder.published) == 30)
    eventually(lambda: fixture.outbox.status().target_error is None)
    assert not_ready
    assert probes == {1}
    assert dispatcher.ready
    eventually(lambda: set(fixture.run("SELECT attempts FROM outbox")) == {(1,)})


def test_a_first_success_clears_what_a_dead_dispatcher_left(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    fixture.run("UPDATE outbox_meta SET target_error = 'left behind'")
    fixture.add()

    dispatcher_of(fixture.outbox, recorder).run_once()

    assert fixture.outbox.status().target_error is None


def test_a_topic_of_the_embedded_engine_is_a_publisher(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    with connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("ledger-postings.fifo", fifo=True))
        topic = backend.topic("events-transfers.fifo", fifo=True)
        topic.subscribe(queue)
        events = [fixture.add(payload={"n": n}) for n in range(12)]

        dispatcher_of(fixture.outbox, topic).drain()

        bodies = [message.body for message in queue.peek(limit=20)]
    assert bodies == [event.to_json() for event in events]


@pytest.mark.parametrize("fifo", [True, False])
def test_a_queue_is_a_publisher_and_gets_group_and_id_where_it_takes_them(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher, fifo: bool
) -> None:
    with connect("memory://") as backend:
        queue = backend.create_queue(QueueSpec("events.fifo" if fifo else "events", fifo=fifo))
        fixture.add(payload={"n": 1})

        report = dispatcher_of(fixture.outbox, queue).drain()

        [message] = queue.peek()
    assert report.sent == 1
    assert message.group == ("tr_1" if fifo else None)


def test_an_object_that_cannot_publish_is_refused(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    with pytest.raises(ConfigurationError, match="publisher"):
        dispatcher_of(fixture.outbox, object())


def test_a_publisher_that_says_nothing_about_a_message_is_asked_again(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    class Silent:
        def publish(self, messages: object) -> list[object]:
            return []

    fixture.add()

    report = dispatcher_of(fixture.outbox, Silent()).run_once()

    assert report.retried == 1
    assert fixture.run("SELECT state, attempts FROM outbox") == [("PENDING", 1)]
