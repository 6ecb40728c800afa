"""Dead letters: what fails too often goes there with its reason, and can be moved back or purged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest

from postroad import queues
from postroad.errors import ConfigurationError, NotSupported, StaleReceipt
from postroad.testing.conformance import needs, refuses
from postroad.testing.queues.fixture import LEASE, QueueFixture, QueueSuite, bodies, ordered, take, take_one, texts

TEN = {f"attribute{n}": "v" for n in range(10)}


class DeadLetterRules(QueueSuite):
    """Messages received too often, rejections, the marker, and which queues may hold the dead letters of others."""

    def test_a_message_received_too_often_moves_to_the_dead_letters_and_says_where_it_came_from(
        self, ground: QueueFixture
    ) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=2)
        [sent] = queue.send([queues.OutgoingMessage(body="poison", attributes={"EventType": "Placed"})])

        ground.exhaust(queue, receives=2)
        letter = take_one(dead)
        marker = _marker_of(letter)

        assert (letter.message_id, letter.body) == (sent.message_id, b"poison")
        assert letter.attributes["EventType"] == "Placed"
        assert (marker.source, marker.receives, marker.type, marker.error) == (queue.name, 2, "Placed", None)
        assert queue.stats().visible + queue.stats().in_flight == 0

    def test_a_message_is_received_as_often_as_allowed_before_it_is_dead(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters("poison", max_receives=3)

        assert _receive_counts(queue, 3) == [1, 2, 3]
        assert dead.stats().visible == 0
        assert queue.receive() == []
        assert bodies([take_one(dead)]) == ["poison"]

    def test_a_receive_that_finds_a_message_dead_gives_out_the_others_once(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters("poison", max_receives=2)
        queue.release([take_one(queue)])
        queue.send(texts("young"))
        take(queue, 2, visibility=LEASE)

        ground.outlast_lease()
        received = queue.receive(max_messages=2, wait=2)

        assert bodies(received) == ["young"]
        assert bodies([take_one(dead)]) == ["poison"]

    def test_a_dead_letter_starts_with_no_receives(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters("poison", max_receives=2)

        ground.exhaust(queue, receives=2)

        assert take_one(dead).receive_count == 1

    def test_the_marker_is_json_with_the_error_of_the_last_release(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=2)
        needs(queue.traits.keeps_release_error, "the traits say that the error of a release is not kept")
        queue.send(texts("poison"))
        for error in ("first", "ValueError: second"):
            queue.release([take_one(queue)], error=error)

        queue.receive()
        marker = msgspec.json.decode(take_one(dead).attributes[queues.DEAD_LETTER])

        assert marker["error"] == "ValueError: second"
        assert (marker["source"], marker["receives"], marker["type"]) == (queue.name, 2, None)
        assert datetime.fromisoformat(marker["at"]).tzinfo is not None

    def test_a_message_with_ten_attributes_moves_without_the_marker(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=1)
        queue.send([queues.OutgoingMessage(body="poison", attributes=TEN)])

        ground.exhaust(queue, receives=1)
        letter = take_one(dead)

        assert {name: letter.attributes.get(name) for name in TEN} == TEN

    def test_a_rejected_message_is_dead_at_once_with_its_reason(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters()
        [sent] = queue.send([queues.OutgoingMessage(body="poison", attributes={"EventType": "Placed"})])

        [result] = queue.reject([take_one(queue)], reason="unknown type", error="KeyError: 'Placed'")
        letter = take_one(dead)
        marker = _marker_of(letter)

        assert result.ok
        assert letter.body == b"poison"
        assert letter.message_id == sent.message_id or not queue.traits.atomic_reject
        assert (marker.source, marker.reason, marker.error) == (queue.name, "unknown type", "KeyError: 'Placed'")
        assert queue.stats().visible + queue.stats().in_flight == 0

    def test_rejecting_in_a_fifo_queue_lets_the_group_go_on(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(fifo=True, content_dedup=True)
        queue.send(texts("poison", "next", group="g"))

        queue.reject([take_one(queue)], reason="bad")

        assert bodies([take_one(queue)]) == ["next"]
        letter = take_one(dead)
        assert (letter.body, letter.group) == (b"poison", "g")

    def test_rejecting_without_a_dead_letter_queue_is_not_supported_and_changes_nothing(
        self, ground: QueueFixture
    ) -> None:
        queue, held = ground.leased("kept", visibility=60)

        with pytest.raises(NotSupported):
            queue.reject([held], reason="bad")

        assert queue.receive() == []
        assert queue.ack([held])[0].ok

    def test_rejecting_with_a_stale_receipt_changes_nothing(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(visibility=LEASE)
        needs(queue.traits.atomic_reject, "the traits say that rejecting is send, then delete")
        queue.send(texts("one"))
        former = take_one(queue)
        ground.outlast_lease()
        holder = take_one(queue, visibility=60)

        [result] = queue.reject([former], reason="bad")

        assert not result.ok
        assert isinstance(result.error, StaleReceipt)
        assert dead.stats().visible == 0
        assert queue.ack([holder])[0].ok

    def test_a_standard_dead_letter_keeps_its_age(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters("poison", max_receives=1)
        sent_at = take_one(queue).sent_at

        ground.outlast_lease()
        queue.receive()

        assert take_one(dead).sent_at == sent_at

    def test_a_fifo_dead_letter_starts_its_age_anew(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(fifo=True, content_dedup=True, max_receives=1)
        queue.send(texts("poison", group="g"))
        sent_at = take_one(queue).sent_at

        ground.outlast_lease()
        queue.receive()

        assert take_one(dead).sent_at > sent_at

    def test_without_a_dead_letter_queue_a_message_is_received_without_end(self, ground: QueueFixture) -> None:
        queue = ground.filled("again", max_receives=1)

        assert _receive_counts(queue, 5) == [1, 2, 3, 4, 5]

    def test_a_dead_letter_queue_must_exist(self, ground: QueueFixture) -> None:
        spec = ground.spec(dead_letter="no-such-queue-anywhere")

        with refuses(ConfigurationError, "dead_letter", match="no-such-queue-anywhere"):
            ground.queues.create_queue(spec)

        assert spec.name not in ground.queues.queues()

    @pytest.mark.parametrize("allow", ["none", ("some-other-queue",)])
    def test_a_dead_letter_queue_refuses_sources_it_does_not_allow(self, ground: QueueFixture, allow: Any) -> None:
        dead = ground.create("dead", redrive_allow=allow)
        spec = ground.spec(dead_letter=dead.name)

        with pytest.raises(ConfigurationError, match="dead_letter"):
            ground.queues.create_queue(spec)

        assert spec.name not in ground.queues.queues()

    def test_a_dead_letter_queue_takes_a_source_it_allows(self, ground: QueueFixture) -> None:
        wanted = ground.spec(max_receives=1)
        dead = ground.create("dead", redrive_allow=(wanted.name,))

        queue = ground.queues.create_queue(replace(wanted, dead_letter=dead.name))
        queue.send(texts("poison"))
        queue.release([take_one(queue)])
        queue.receive()

        assert bodies([take_one(dead)]) == ["poison"]


class MovingRules(QueueSuite):
    """Moving step by step, and purging, where the adapter is `Movable`."""

    def test_moved_messages_keep_id_body_group_and_order_and_start_at_no_receives(self, ground: QueueFixture) -> None:
        (source, movable), target = _movable(ground, fifo=True), ground.create("target", fifo=True)
        sent = source.send(ordered("g", "1", "2", "3"))
        source.release([take_one(source)])
        target.send(ordered("g", "waits"))

        step = movable.move(lambda message: queues.Move(to=target.name, attributes={"moved": "yes"}))
        received = take(target, 4)

        assert {message_id for message_id, _ in step.moved} == {result.message_id for result in sent}
        assert (step.cursor, step.looked_at, step.in_flight) == (None, 3, 0)
        assert bodies(received) == ["waits", "1", "2", "3"]
        assert [delivery.receive_count for delivery in received] == [1, 1, 1, 1]
        assert received[1].attributes == {"moved": "yes"}
        assert [delivery.message_id for delivery in received[1:]] == [result.message_id for result in sent]
        assert source.receive() == []

    def test_a_step_looks_at_its_limit_and_the_cursor_goes_on(self, ground: QueueFixture) -> None:
        source, movable = _movable(ground)
        source.send(texts(*"abcde"))
        seen: list[bytes] = []

        first = movable.move(lambda message: seen.append(message.body), limit=2)
        second = movable.move(lambda message: seen.append(message.body), cursor=first.cursor, limit=10)

        assert seen == [b"a", b"b", b"c", b"d", b"e"]
        assert (first.looked_at, second.looked_at) == (2, 3)
        assert (first.moved, second.moved) == ((), ())
        assert second.cursor is None

    def test_messages_in_flight_are_left_alone_and_counted(self, ground: QueueFixture) -> None:
        (source, movable), target = _movable(ground, visibility=60), ground.create("target")
        source.send(texts("a", "b"))
        held = take_one(source)

        step = movable.move(lambda message: queues.Move(to=target.name, attributes={}))

        assert step.in_flight == 1
        assert len(step.moved) == 1
        assert source.ack([held])[0].ok

    def test_a_step_that_fails_moves_nothing(self, ground: QueueFixture) -> None:
        (source, movable), target = _movable(ground), ground.create("target")
        source.send(texts("a", "b"))

        def decide(message: queues.PeekedMessage) -> queues.Move:
            if message.body == b"b":
                raise RuntimeError("no")
            return queues.Move(to=target.name, attributes={})

        with pytest.raises(RuntimeError):
            movable.move(decide)

        assert target.receive() == []
        assert sorted(bodies(take(source, 2))) == ["a", "b"]

    def test_peeking_goes_on_behind_a_message_that_went_and_came_back(self, ground: QueueFixture) -> None:
        (source, there), (target, back) = _movable(ground), _movable(ground)
        source.send(texts("a"))
        there.move(lambda message: queues.Move(to=target.name, attributes={}))
        source.send(texts("b"))
        back.move(lambda message: queues.Move(to=source.name, attributes={}))

        b, a = source.peek()

        assert [b.body, a.body] == [b"b", b"a"]
        assert source.peek(after=a.message_id) == []

    def test_the_end_is_a_cursor_behind_what_is_there_now(self, ground: QueueFixture) -> None:
        source, movable = _movable(ground)
        source.send(texts("before"))

        end = movable.end()
        source.send(texts("after"))
        seen: list[bytes] = []
        movable.move(lambda message: seen.append(message.body), cursor=end)

        assert seen == [b"after"]

    def test_looking_shows_what_is_there_in_order_and_changes_nothing(self, ground: QueueFixture) -> None:
        source, movable = _movable(ground, visibility=60)
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
        (source, movable), target = _movable(ground, visibility=60), ground.create("target")
        source.send(texts(*"abcd"))
        held = take_one(source)
        sequences = [message.sequence or 0 for message in source.peek()]

        step = movable.move(
            lambda message: queues.Move(to=target.name, attributes={}),
            only=[sequences[0], sequences[2], sequences[3], 10**12],
        )

        assert [message.body for message in target.peek()] == [b"c", b"d"]
        assert [message.body for message in source.peek()] == [b"a", b"b"]
        assert (len(step.moved), step.in_flight, step.cursor) == (2, 1, None)
        assert source.ack([held])[0].ok

    def test_a_message_is_found_wherever_it_went_until_it_is_settled(self, ground: QueueFixture) -> None:
        (source, movable), target = _movable(ground, visibility=60), ground.create("target", visibility=60)
        ids = [str(result.message_id) for result in source.send(texts("goes", "stays", "done"))]
        movable.move(lambda message: queues.Move(to=target.name, attributes={}) if message.body == b"goes" else None)
        source.ack([delivery for delivery in take(source, 2) if delivery.body == b"done"])

        found = movable.whereabouts([*ids, "nobody's"])

        assert found == {ids[0]: target.name, ids[1]: source.name}

    def test_what_is_taken_out_is_handed_over_before_it_is_removed(self, ground: QueueFixture) -> None:
        source, movable = _movable(ground, visibility=60)
        source.send([*texts(*(str(number) for number in range(150))), *texts("later", delay=60)])
        take_one(source)
        kept: list[str] = []

        def keep(messages: Sequence[queues.PeekedMessage]) -> None:
            stats = source.stats()
            assert stats.visible + stats.in_flight + stats.delayed == 151 - len(kept)
            kept.extend(message.body.decode() for message in messages)

        removed = movable.take_out(keep)

        assert removed == 151
        assert kept == [*(str(number) for number in range(150)), "later"]
        assert source.peek() == []

    def test_what_could_not_be_handed_over_stays(self, ground: QueueFixture) -> None:
        source, movable = _movable(ground)
        source.send(texts("a", "b"))

        def refuse(messages: Sequence[queues.PeekedMessage]) -> None:
            raise OSError("no room")

        with pytest.raises(OSError, match="no room"):
            movable.take_out(refuse)

        assert sorted(bodies(take(source, 2))) == ["a", "b"]

    def test_groups_go_on_after_their_first_messages_were_taken_out(self, ground: QueueFixture) -> None:
        source, movable = _movable(ground, fifo=True, visibility=60)
        source.send(ordered("g", "1", "2"))
        take_one(source)

        movable.take_out(lambda messages: None)
        source.send(ordered("g", "3"))

        assert bodies([take_one(source)]) == ["3"]

    def test_purging_removes_everything_and_says_how_much(self, ground: QueueFixture) -> None:
        queue = ground.create(visibility=60)
        if not isinstance(queue, queues.Movable):
            pytest.skip("the adapter moves and purges nothing")
        queue.send([*texts("a", "b"), *texts("c", delay=60)])
        held = take_one(queue)

        purged = queue.purge()
        stats = queue.stats()

        assert purged == 3
        assert (stats.visible, stats.in_flight, stats.delayed) == (0, 0, 0)
        assert not queue.release([held])[0].ok


def _movable(ground: QueueFixture, **settings: Any) -> tuple[queues.Queue, queues.Movable]:
    queue = ground.create(**settings)
    if not isinstance(queue, queues.Movable) or not queue.traits.peeks_clean:
        pytest.skip("the adapter moves by send and delete, which its own tests cover")
    return queue, queue


def _receive_counts(queue: queues.Queue, times: int) -> list[int]:
    counts = []
    for _ in range(times):
        held = take_one(queue)
        counts.append(held.receive_count)
        queue.release([held])
    return counts


def _marker_of(letter: queues.Delivery) -> queues.DeadLetter:
    marker = queues.read_dead(letter.attributes)
    assert marker is not None
    return marker
