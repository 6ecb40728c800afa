"""What fails too often goes to the dead letters with its reason, and is never lost on the way."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import msgspec
import pytest

from postroad.errors import ConfigurationError, NotSupported, PostroadError, QueueNotFound, StaleReceipt
from postroad.queues import DEAD_LETTER, OutgoingMessage, read_dead
from postroad.testing.queues.fixture import (
    LEASE,
    LEASE_OVER,
    QueueFixture,
    QueueRules,
    bodies,
    exhaust,
    take,
    take_one,
    texts,
)

TEN = {f"attribute{n}": "v" for n in range(10)}


class DeadLetterRules(QueueRules):
    """Exhaustion, rejection, the marker, and which queues may be dead letters of which."""

    def test_a_message_received_too_often_moves_to_the_dead_letters(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=2)
        queue.send([OutgoingMessage(body="poison", attributes={"EventType": "Placed"})])

        exhaust(ground, queue, receives=2)
        letter = take_one(dead)

        assert letter.body == b"poison"
        assert letter.attributes["EventType"] == "Placed"
        assert queue.stats().visible + queue.stats().in_flight == 0

    def test_a_message_is_received_as_often_as_allowed_before_it_is_dead(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=3)
        queue.send(texts("poison"))

        counts = []
        for _ in range(3):
            held = take_one(queue)
            counts.append(held.receive_count)
            queue.release([held])

        assert counts == [1, 2, 3]
        assert dead.stats().visible == 0
        assert queue.receive() == []
        assert bodies([take_one(dead)]) == ["poison"]

    def test_a_receive_that_finds_a_message_dead_gives_out_the_others_once(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=2)
        queue.send(texts("poison"))
        queue.release([take_one(queue)])
        queue.send(texts("young"))
        take(queue, 2, visibility=LEASE)

        ground.advance(LEASE_OVER)
        received = queue.receive(max_messages=2, wait=2)

        assert bodies(received) == ["young"]
        assert bodies([take_one(dead)]) == ["poison"]

    def test_a_dead_letter_keeps_its_id(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=1)
        [sent] = queue.send(texts("poison"))

        exhaust(ground, queue, receives=1)

        assert take_one(dead).message_id == sent.message_id

    def test_a_dead_letter_starts_with_no_receives(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=2)
        queue.send(texts("poison"))

        exhaust(ground, queue, receives=2)

        assert take_one(dead).receive_count == 1

    def test_a_dead_letter_says_where_it_came_from(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=1)
        queue.send([OutgoingMessage(body="poison", attributes={"EventType": "Placed"})])

        exhaust(ground, queue, receives=1)
        marker = read_dead(take_one(dead).attributes)

        assert marker is not None
        assert (marker.source, marker.receives, marker.type) == (queue.name, 1, "Placed")

    def test_the_marker_is_json_with_the_error_of_the_last_release(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=2)
        if not queue.traits.keeps_release_error:
            pytest.skip("the error of a release is not kept, says the trait")
        queue.send(texts("poison"))
        for error in ("first", "ValueError: second"):
            queue.release([take_one(queue)], error=error)

        queue.receive()
        marker = msgspec.json.decode(take_one(dead).attributes[DEAD_LETTER])

        assert marker["error"] == "ValueError: second"
        assert (marker["source"], marker["receives"], marker["type"]) == (queue.name, 2, None)
        assert datetime.fromisoformat(marker["at"]).tzinfo is not None

    def test_without_a_release_the_markers_error_is_null(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=1)
        queue.send(texts("poison"))

        exhaust(ground, queue, receives=1)
        marker = read_dead(take_one(dead).attributes)

        assert marker is not None
        assert marker.error is None

    def test_a_message_with_ten_attributes_moves_without_the_marker(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=1)
        queue.send([OutgoingMessage(body="poison", attributes=TEN)])

        exhaust(ground, queue, receives=1)
        letter = take_one(dead)

        assert {name: letter.attributes.get(name) for name in TEN} == TEN

    def test_a_rejected_message_is_dead_at_once_with_its_reason(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters()
        queue.send([OutgoingMessage(body="poison", attributes={"EventType": "Placed"})])

        [result] = queue.reject([take_one(queue)], reason="unknown type", error="KeyError: 'Placed'")
        letter = take_one(dead)
        marker = read_dead(letter.attributes)

        assert result.ok
        assert letter.body == b"poison"
        assert marker is not None
        assert (marker.source, marker.reason, marker.error) == (queue.name, "unknown type", "KeyError: 'Placed'")
        assert queue.stats().visible + queue.stats().in_flight == 0

    def test_a_rejected_message_keeps_its_id(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters()
        if not queue.traits.atomic_reject:
            pytest.skip("rejecting is send, then delete, says the trait")
        [sent] = queue.send(texts("poison"))

        queue.reject([take_one(queue)], reason="bad")

        assert take_one(dead).message_id == sent.message_id

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
        queue = ground.create(visibility=60)
        queue.send(texts("kept"))
        held = take_one(queue)

        with pytest.raises(NotSupported):
            queue.reject([held], reason="bad")

        assert queue.receive() == []
        assert queue.ack([held])[0].ok

    def test_rejecting_with_a_stale_receipt_changes_nothing(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(visibility=LEASE)
        if not queue.traits.atomic_reject:
            pytest.skip("rejecting is send, then delete, says the trait")
        queue.send(texts("one"))
        former = take_one(queue)
        ground.advance(LEASE_OVER)
        holder = take_one(queue, visibility=60)

        [result] = queue.reject([former], reason="bad")

        assert not result.ok
        assert isinstance(result.error, StaleReceipt)
        assert dead.stats().visible == 0
        assert queue.ack([holder])[0].ok

    def test_a_standard_dead_letter_keeps_its_age(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(max_receives=1)
        queue.send(texts("poison"))
        sent_at = take_one(queue).sent_at

        ground.advance(LEASE_OVER)
        queue.receive()

        assert take_one(dead).sent_at == sent_at

    def test_a_fifo_dead_letter_starts_its_age_anew(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(fifo=True, content_dedup=True, max_receives=1)
        queue.send(texts("poison", group="g"))
        sent_at = take_one(queue).sent_at

        ground.advance(LEASE_OVER)
        queue.receive()

        assert take_one(dead).sent_at > sent_at

    def test_without_a_dead_letter_queue_a_message_is_received_without_end(self, ground: QueueFixture) -> None:
        queue = ground.create(max_receives=1)
        queue.send(texts("again"))

        counts = []
        for _ in range(5):
            held = take_one(queue)
            counts.append(held.receive_count)
            queue.release([held])

        assert counts == [1, 2, 3, 4, 5]

    def test_a_dead_letter_queue_must_exist(self, ground: QueueFixture) -> None:
        spec = ground.spec(dead_letter="no-such-queue-anywhere")

        with pytest.raises((ConfigurationError, QueueNotFound), match="no-such-queue-anywhere"):
            ground.queues.create_queue(spec)

        assert spec.name not in ground.queues.queues()

    @pytest.mark.parametrize("allow", ["none", ("some-other-queue",)])
    def test_a_dead_letter_queue_refuses_sources_it_does_not_allow(
        self, ground: QueueFixture, allow: str | tuple[str, ...]
    ) -> None:
        dead = ground.create("dead", redrive_allow=allow)
        spec = ground.spec(dead_letter=dead.name)

        with pytest.raises(PostroadError, match="dead_letter") as refused:
            ground.queues.create_queue(spec)

        assert isinstance(refused.value, ConfigurationError)
        assert spec.name not in ground.queues.queues()

    def test_a_dead_letter_queue_takes_a_source_it_allows(self, ground: QueueFixture) -> None:
        wanted = ground.spec(max_receives=1)
        dead = ground.create("dead", redrive_allow=(wanted.name,))

        queue = ground.queues.create_queue(replace(wanted, dead_letter=dead.name))
        queue.send(texts("poison"))
        queue.release([take_one(queue)])
        queue.receive()

        assert bodies([take_one(dead)]) == ["poison"]
