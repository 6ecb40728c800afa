"""Messages can be moved between queues and purged where the adapter is `Movable`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from postroad.queues import Movable, Move, PeekedMessage, Queue
from postroad.testing.queues.fixture import QueueFixture, QueueRules, bodies, ordered, take, take_one, texts


class MovingRules(QueueRules):
    """Steps of moving, and purging."""

    def test_moved_messages_keep_id_body_group_and_order_and_start_at_no_receives(self, ground: QueueFixture) -> None:
        source, target = ground.create("source", fifo=True), ground.create("target", fifo=True)
        movable = _movable(source)
        sent = source.send(ordered("g", "1", "2", "3"))
        source.release([take_one(source)])
        target.send(ordered("g", "waits"))

        step = movable.move(lambda message: Move(to=target.name, attributes={"moved": "yes"}))
        received = take(target, 4)

        assert {message_id for message_id, _ in step.moved} == {result.message_id for result in sent}
        assert (step.cursor, step.looked_at, step.in_flight) == (None, 3, 0)
        assert bodies(received) == ["waits", "1", "2", "3"]
        assert [delivery.receive_count for delivery in received] == [1, 1, 1, 1]
        assert received[1].attributes == {"moved": "yes"}
        assert [delivery.message_id for delivery in received[1:]] == [result.message_id for result in sent]
        assert source.receive() == []

    def test_a_step_looks_at_its_limit_and_the_cursor_goes_on(self, ground: QueueFixture) -> None:
        source = ground.create("source")
        movable = _movable(source)
        source.send(texts(*"abcde"))
        seen: list[bytes] = []

        first = movable.move(lambda message: seen.append(message.body), limit=2)
        second = movable.move(lambda message: seen.append(message.body), cursor=first.cursor, limit=10)

        assert seen == [b"a", b"b", b"c", b"d", b"e"]
        assert (first.looked_at, second.looked_at) == (2, 3)
        assert (first.moved, second.moved) == ((), ())
        assert second.cursor is None

    def test_messages_in_flight_are_left_alone_and_counted(self, ground: QueueFixture) -> None:
        source, target = ground.create("source", visibility=60), ground.create("target")
        movable = _movable(source)
        source.send(texts("a", "b"))
        held = take_one(source)

        step = movable.move(lambda message: Move(to=target.name, attributes={}))

        assert step.in_flight == 1
        assert len(step.moved) == 1
        assert source.ack([held])[0].ok

    def test_a_step_that_fails_moves_nothing(self, ground: QueueFixture) -> None:
        source, target = ground.create("source"), ground.create("target")
        movable = _movable(source)
        source.send(texts("a", "b"))

        def decide(message: PeekedMessage) -> Move:
            if message.body == b"b":
                raise RuntimeError("no")
            return Move(to=target.name, attributes={})

        with pytest.raises(RuntimeError):
            movable.move(decide)

        assert target.receive() == []
        assert sorted(bodies(take(source, 2))) == ["a", "b"]

    def test_peeking_goes_on_behind_a_message_that_went_and_came_back(self, ground: QueueFixture) -> None:
        source, target = ground.create("source"), ground.create("target")
        there, back = _movable(source), _movable(target)
        source.send(texts("a"))
        there.move(lambda message: Move(to=target.name, attributes={}))
        source.send(texts("b"))
        back.move(lambda message: Move(to=source.name, attributes={}))

        b, a = source.peek()

        assert [b.body, a.body] == [b"b", b"a"]
        assert source.peek(after=a.message_id) == []

    def test_the_end_is_a_cursor_behind_what_is_there_now(self, ground: QueueFixture) -> None:
        source = ground.create("source")
        movable = _movable(source)
        source.send(texts("before"))

        end = movable.end()
        source.send(texts("after"))
        seen: list[bytes] = []
        movable.move(lambda message: seen.append(message.body), cursor=end)

        assert seen == [b"after"]

    def test_looking_shows_what_is_there_in_order_and_changes_nothing(self, ground: QueueFixture) -> None:
        source = ground.create("source", visibility=60)
        movable = _movable(source)
        source.send(texts("a", "b", "c", attributes={"EventType": "placed"}))
        held = take_one(source)

        first = movable.look(limit=2)
        second = movable.look(cursor=first.cursor, limit=2)

        seen = [*first.messages, *second.messages]
        assert [message.message_id for message in seen] == [message.message_id for message in source.peek()]
        assert [message.state for message in seen] == ["in_flight", "visible", "visible"]
        assert {message.attributes["EventType"] for message in seen} == {"placed"}
        assert second.cursor is None
        assert source.ack([held])[0].ok

    def test_messages_are_moved_by_their_sequences_as_far_as_they_are_there(self, ground: QueueFixture) -> None:
        source, target = ground.create("source", visibility=60), ground.create("target")
        movable = _movable(source)
        source.send(texts(*"abcd"))
        held = take_one(source)
        sequences = [message.sequence or 0 for message in source.peek()]

        step = movable.move(
            lambda message: Move(to=target.name, attributes={}), only=[sequences[0], sequences[2], sequences[3], 10**12]
        )

        assert [message.body for message in target.peek()] == [b"c", b"d"]
        assert [message.body for message in source.peek()] == [b"a", b"b"]
        assert (len(step.moved), step.in_flight, step.cursor) == (2, 1, None)
        assert source.ack([held])[0].ok

    def test_a_message_is_found_wherever_it_went_until_it_is_settled(self, ground: QueueFixture) -> None:
        source, target = ground.create("source", visibility=60), ground.create("target", visibility=60)
        movable = _movable(source)
        ids = [str(result.message_id) for result in source.send(texts("goes", "stays", "done"))]
        movable.move(lambda message: Move(to=target.name, attributes={}) if message.body == b"goes" else None)
        source.ack([delivery for delivery in take(source, 2) if delivery.body == b"done"])

        found = movable.whereabouts([*ids, "nobody's"])

        assert found == {ids[0]: target.name, ids[1]: source.name}

    def test_what_is_taken_out_is_handed_over_before_it_is_removed(self, ground: QueueFixture) -> None:
        source = ground.create("source", visibility=60)
        movable = _movable(source)
        source.send([*texts(*(str(number) for number in range(150))), *texts("later", delay=60)])
        take_one(source)
        kept: list[str] = []

        def keep(messages: Sequence[PeekedMessage]) -> None:
            stats = source.stats()
            assert stats.visible + stats.in_flight + stats.delayed == 151 - len(kept)
            kept.extend(message.body.decode() for message in messages)

        removed = movable.take_out(keep)

        assert removed == 151
        assert kept == [*(str(number) for number in range(150)), "later"]
        assert source.peek() == []

    def test_what_could_not_be_handed_over_stays(self, ground: QueueFixture) -> None:
        source = ground.create("source")
        movable = _movable(source)
        source.send(texts("a", "b"))

        def refuse(messages: Sequence[PeekedMessage]) -> None:
            raise OSError("no room")

        with pytest.raises(OSError, match="no room"):
            movable.take_out(refuse)

        assert sorted(bodies(take(source, 2))) == ["a", "b"]

    def test_groups_go_on_after_their_first_messages_were_taken_out(self, ground: QueueFixture) -> None:
        source = ground.create("source", fifo=True, visibility=60)
        movable = _movable(source)
        source.send(ordered("g", "1", "2"))
        take_one(source)

        movable.take_out(lambda messages: None)
        source.send(ordered("g", "3"))

        assert bodies([take_one(source)]) == ["3"]

    def test_purging_removes_everything_and_says_how_much(self, ground: QueueFixture) -> None:
        queue = ground.create(visibility=60)
        if not isinstance(queue, Movable):
            pytest.skip("the adapter moves and purges nothing")
        queue.send([*texts("a", "b"), *texts("c", delay=60)])
        held = take_one(queue)

        purged = queue.purge()
        stats = queue.stats()

        assert purged == 3
        assert (stats.visible, stats.in_flight, stats.delayed) == (0, 0, 0)
        assert not queue.release([held])[0].ok


def _movable(queue: Queue) -> Movable:
    if not isinstance(queue, Movable) or not queue.traits.peeks_clean:
        pytest.skip("the adapter moves by send and delete, which its own tests cover")
    return queue
