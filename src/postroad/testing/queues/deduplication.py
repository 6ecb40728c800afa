"""FIFO queues recognise a repeated send for five minutes."""

from __future__ import annotations

from postroad.queues import OutgoingMessage
from postroad.testing.queues.fixture import QueueFixture, QueueRules, bodies, ordered, take, take_one, texts


class DeduplicationRules(QueueRules):
    """By id or by content, per queue or per group, settled or not."""

    def test_a_repeated_dedup_id_is_ok_and_has_the_first_messages_id(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True)

        [first] = queue.send([OutgoingMessage(body="one", group="g", dedup_id="same")])
        [second] = queue.send([OutgoingMessage(body="two", group="g", dedup_id="same")])

        assert second.ok
        assert second.message_id == first.message_id
        assert bodies([take_one(queue)]) == ["one"]
        assert queue.stats().visible == 0

    def test_a_duplicate_in_the_same_batch_is_recognised(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True)

        first, second = queue.send(texts("one", "two", group="g", dedup_id="same"))

        assert first.message_id == second.message_id
        assert bodies(queue.receive(wait=2)) == ["one"]

    def test_an_acked_message_is_still_recognised(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True)
        [first] = queue.send(ordered("g", "one"))
        queue.ack([take_one(queue)])

        [again] = queue.send(ordered("g", "one"))

        assert again.message_id == first.message_id
        assert queue.receive() == []

    def test_a_restart_does_not_forget_what_was_sent(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True)
        [first] = queue.send(ordered("g", "one"))
        queue.ack([take_one(queue)])

        [again] = ground.reopened(queue).send(ordered("g", "one"))

        assert again.message_id == first.message_id

    def test_after_five_minutes_from_the_first_send_it_is_a_new_message(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=60)
        [first] = queue.send(ordered("g", "one"))
        queue.ack([take_one(queue)])
        ground.jump(200)
        queue.send(ordered("g", "one"))

        ground.jump(101)
        [again] = queue.send(ordered("g", "one"))

        assert again.message_id != first.message_id
        assert bodies([take_one(queue)]) == ["one"]

    def test_equal_bodies_are_one_message_where_content_counts(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, content_dedup=True)

        first, second, other = queue.send(texts("one", "one", "two", group="g"))

        assert first.message_id == second.message_id != other.message_id
        assert bodies(take(queue, 2)) == ["one", "two"]

    def test_a_dedup_id_goes_before_the_content(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, content_dedup=True)

        queue.send([OutgoingMessage(body="one", group="g", dedup_id=each) for each in ("a", "b")])

        assert bodies(take(queue, 2)) == ["one", "one"]

    def test_groups_share_the_dedup_ids_of_their_queue(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True)

        first, second = queue.send([OutgoingMessage(body="x", group=each, dedup_id="same") for each in ("a", "b")])

        assert first.message_id == second.message_id

    def test_groups_have_dedup_ids_of_their_own_where_the_scope_is_the_group(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, dedup_scope="group")

        results = queue.send([OutgoingMessage(body="x", group=each, dedup_id="same") for each in ("a", "b", "a")])

        assert results[0].message_id == results[2].message_id != results[1].message_id

    def test_a_standard_queue_recognises_nothing(self, ground: QueueFixture) -> None:
        queue = ground.create()

        first, second = queue.send(texts("same", "same"))

        assert first.message_id != second.message_id
        assert bodies(take(queue, 2)) == ["same", "same"]
