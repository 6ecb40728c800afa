"""Moving and purging on SQS: receive, decide, send, delete."""

from __future__ import annotations

import pytest

from postroad.connections.aws import AwsConnection
from postroad.errors import QueueNotFound
from postroad.queues import Movable, Move, OutgoingMessage, PeekedMessage
from postroad.queues.sqs import SQSQueues
from postroad.testing.queues import QueueFixture
from postroad.testing.queues.fixture import bodies, ordered, take, take_one, texts

pytestmark = pytest.mark.aws


@pytest.fixture
def ground(aws: AwsConnection) -> QueueFixture:
    return QueueFixture(queues=SQSQueues(aws))


def movable(queue: object) -> Movable:
    assert isinstance(queue, Movable)
    return queue


def test_what_is_chosen_moves_and_the_rest_is_given_back(ground: QueueFixture) -> None:
    source, target = ground.create("source", visibility=60), ground.create("target", visibility=60)
    source.send(texts("go 1", "stay", "go 2"))

    step = movable(source).move(
        lambda message: Move(to=target.name, attributes={"moved": "yes"}) if message.body[:2] == b"go" else None
    )

    assert (step.cursor, step.looked_at, len(step.moved), step.in_flight) == (None, 3, 2, 0)
    moved = take(target, 2)
    assert sorted(bodies(moved)) == ["go 1", "go 2"]
    assert {delivery.attributes["moved"] for delivery in moved} == {"yes"}
    assert bodies([take_one(source)]) == ["stay"]


def test_a_step_looks_at_its_limit_and_the_next_one_meets_nothing_twice(ground: QueueFixture) -> None:
    source = ground.create("source", visibility=60)
    source.send(texts(*"abcde"))
    seen: list[bytes] = []

    first = movable(source).move(lambda message: seen.append(message.body), limit=2)
    second = movable(source).move(lambda message: seen.append(message.body), cursor=first.cursor, limit=2)
    third = movable(source).move(lambda message: seen.append(message.body), cursor=second.cursor, limit=2)

    assert sorted(seen) == [b"a", b"b", b"c", b"d", b"e"]
    assert (first.looked_at, second.looked_at, third.looked_at) == (2, 2, 1)
    assert third.cursor is None
    assert len(take(source, 5)) == 5


def test_groups_move_in_their_order(ground: QueueFixture) -> None:
    source, target = ground.create("source", fifo=True), ground.create("target", fifo=True, visibility=60)
    source.send([*ordered("g", *(f"g{n:02}" for n in range(12))), *ordered("h", "h0", "h1")])

    step = movable(source).move(lambda message: Move(to=target.name, attributes={}))

    received: list[str] = []
    while batch := target.receive(wait=1):
        received += bodies(batch)
        target.ack(batch)
    assert len(step.moved) == 14
    assert [body for body in received if body[0] == "g"] == [f"g{n:02}" for n in range(12)]
    assert [body for body in received if body[0] == "h"] == ["h0", "h1"]


def test_a_message_that_was_sent_before_a_crash_is_not_there_twice(ground: QueueFixture) -> None:
    source, target = ground.create("source", fifo=True), ground.create("target", fifo=True, visibility=60)
    [sent] = source.send(ordered("g", "once"))
    target.send([OutgoingMessage("once", group="g", dedup_id=sent.message_id)])

    movable(source).move(lambda message: Move(to=target.name, attributes={}))

    assert bodies(target.receive(wait=1)) == ["once"]


def test_messages_in_flight_are_left_alone_and_counted(ground: QueueFixture) -> None:
    source, target = ground.create("source", visibility=60), ground.create("target")
    source.send(texts("a", "b"))
    held = take_one(source)

    step = movable(source).move(lambda message: Move(to=target.name, attributes={}))

    assert (len(step.moved), step.in_flight) == (1, 1)
    assert source.ack([held])[0].ok


def test_a_decision_that_fails_gives_everything_back(ground: QueueFixture) -> None:
    source = ground.create("source", visibility=60)
    source.send(texts("a", "b"))

    def decide(message: PeekedMessage) -> Move:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        movable(source).move(decide)

    assert len(take(source, 2)) == 2


def test_a_target_that_is_not_there_moves_nothing(ground: QueueFixture) -> None:
    source = ground.create("source", visibility=60)
    source.send(texts("a"))

    with pytest.raises(QueueNotFound, match="nowhere"):
        movable(source).move(lambda message: Move(to="nowhere", attributes={}))

    assert bodies([take_one(source)]) == ["a"]


def test_a_message_received_too_often_is_a_dead_letter_of_its_queue(ground: QueueFixture) -> None:
    queue, dead = ground.create_with_dead_letters(max_receives=1, visibility=60)
    queue.send(texts("poison"))

    queue.release([take_one(queue)])
    assert queue.receive() == []

    letter = take_one(dead)
    assert letter.body == b"poison"
    assert queue.name in letter.attributes["DeadLetter"]
