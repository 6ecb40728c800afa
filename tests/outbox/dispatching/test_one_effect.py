"""One effect of a publish whose answer was lost: the topic knows the copy for five minutes, the inbox ever after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.outbox.dispatching.conftest import MakeDispatcher
from tests.outbox.fixtures import OutboxFixture

from postroad import Backend, OutgoingMessage, QueueSpec, SendResult, connect
from postroad.inbox import Consumer, DomainEvent, Inbox
from postroad.testing import FakeClock
from postroad.topics import Topic


class Forgetful:
    """Publishes, and loses the first answer."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._answers = False

    def publish(self, messages: Sequence[OutgoingMessage]) -> Sequence[SendResult]:
        results = self._topic.publish(messages)
        if not self._answers:
            self._answers = True
            raise TimeoutError("no answer")
        return results


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backend(tmp_path: Path, clock: FakeClock) -> Iterator[Backend]:
    with connect(f"sqlite:///{tmp_path / 'bus.db'}", clock=clock) as opened:
        yield opened


@pytest.fixture
def inbox(fixture: OutboxFixture) -> Iterator[Inbox]:
    with Inbox.open(fixture.dsn) as opened:
        opened.init()
        yield opened


@pytest.mark.parametrize(("later", "copies"), [(0, 1), (301, 2)])
def test_an_event_that_is_published_twice_has_one_effect(
    fixture: OutboxFixture,
    backend: Backend,
    clock: FakeClock,
    inbox: Inbox,
    dispatcher_of: MakeDispatcher,
    later: int,
    copies: int,
) -> None:
    queue = backend.create_queue(QueueSpec("ledger.fifo", fifo=True))
    topic = backend.topic("events.fifo", fifo=True)
    topic.subscribe(queue)
    events = [fixture.add(payload={"n": n}) for n in (1, 2)]
    dispatcher = dispatcher_of(fixture.outbox, Forgetful(topic))
    dispatcher.run_once()
    clock.advance(later)
    fixture.set(events[0], next_attempt="2020-01-01T00:00:00.000Z")
    effects: list[Any] = []

    def handler(event: DomainEvent, connection: object) -> None:
        effects.append(event.payload["n"])

    dispatcher.drain()
    arrived = queue.stats().visible
    Consumer(queue, handler, name="ledger", inbox=inbox).run_once()

    assert arrived == copies + 1
    assert effects == [1, 2]
    assert fixture.run("SELECT state, attempts FROM outbox ORDER BY seq") == [("SENT", 2), ("SENT", 1)]
