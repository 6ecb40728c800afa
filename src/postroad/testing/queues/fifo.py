"""FIFO queues: order within a group, no order between groups, and deduplication for five minutes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from postroad.queues import Delivery, OutgoingMessage, Queue
from postroad.testing.conformance import needs
from postroad.testing.queues.fixture import (
    ACK,
    LEASE,
    RELEASE,
    QueueFixture,
    QueueSuite,
    Verb,
    bodies,
    drained,
    ordered,
    take,
    take_one,
    texts,
)


class FifoRules(QueueSuite):
    """Order, and the locks of groups."""

    def test_a_group_comes_in_the_order_it_was_sent(self, fifo_queue: Queue) -> None:
        sent = [f"{n:02}" for n in range(25)]
        fifo_queue.send(ordered("g", *sent))

        received: list[str] = []
        while len(received) < 25:
            held = fifo_queue.receive(max_messages=4, wait=2)
            received += bodies(held)
            fifo_queue.ack(held)

        assert received == sent

    def test_a_blocked_group_does_not_hold_another(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=60)
        queue.send(ordered("a", "a1", "a2"))
        take_one(queue)

        queue.send(ordered("b", "b1", "b2"))

        assert bodies(take(queue, 2)) == ["b1", "b2"]

    @pytest.mark.parametrize(
        ("settle", "rest"), [pytest.param(ACK, ["3"], id="ack"), pytest.param(RELEASE, ["1", "2", "3"], id="release")]
    )
    def test_a_group_goes_on_when_all_its_messages_in_flight_are_settled(
        self, ground: QueueFixture, settle: Verb, rest: list[str]
    ) -> None:
        queue = ground.filled("1", "2", "3", fifo=True, visibility=60)
        first, second = take(queue, 2)

        locked = queue.receive()
        settle(queue, [first])
        still_locked = queue.receive()
        settle(queue, [second])

        assert (locked, still_locked) == ([], [])
        assert bodies(take(queue, len(rest))) == rest

    @pytest.mark.parametrize("after", [0, 1])
    def test_a_released_message_comes_before_those_behind_it(self, ground: QueueFixture, after: float) -> None:
        queue = ground.filled("1", "2", fifo=True, visibility=60)

        queue.release([take_one(queue)], after=after)
        early = queue.receive() if after else []
        ground.outlast_lease()

        assert early == []
        assert bodies(take(queue, 2)) == ["1", "2"]

    def test_expired_leases_come_back_in_order(self, ground: QueueFixture) -> None:
        queue = ground.filled("1", "2", "3", fifo=True, visibility=LEASE)
        take(queue, 2)

        ground.outlast_lease()

        assert bodies(take(queue, 3, visibility=60)) == ["1", "2", "3"]

    def test_two_groups_are_drained_in_parallel_each_in_order(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=300)
        for n in range(10):
            queue.send([*ordered("a", f"{n}"), *ordered("b", f"{n}")])

        seen: list[Delivery] = []

        def drain(_: int) -> None:
            while received := queue.receive(max_messages=1, wait=1):
                # Nobody else holds this group before the ack, so what stands here is its order.
                seen.extend(received)
                queue.ack(received)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(drain, range(3)))

        for group in "ab":
            assert [int(each.body) for each in seen if each.group == group] == list(range(10))

    def test_receivers_in_parallel_never_hold_one_group_together(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=300)
        needs(queue.traits.ordered, "the traits say that the adapter promises no order")
        queue.send([message for group in "abcd" for message in ordered(group, "1", "2")])

        with ThreadPoolExecutor(4) as pool:
            held = list(pool.map(lambda _: queue.receive(max_messages=1, wait=2), range(4)))

        groups = [delivery.group for deliveries in held for delivery in deliveries]
        assert sorted(group for group in groups if group is not None) == ["a", "b", "c", "d"]
        assert {bodies(deliveries)[0] for deliveries in held} == {"1"}

    def test_a_dead_letter_lets_its_group_go_on(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters("poison", "next", fifo=True, max_receives=1)

        take_one(queue)
        ground.outlast_lease()

        assert bodies([take_one(queue)]) == ["next"]
        assert bodies([take_one(dead)]) == ["poison"]


class DeduplicationRules(QueueSuite):
    """Repeated sends are recognised by id or by content, per queue or per group, settled or not."""

    def test_a_repeated_dedup_id_is_ok_and_has_the_first_messages_id(self, fifo_queue: Queue) -> None:
        [first] = fifo_queue.send([OutgoingMessage(body="one", group="g", dedup_id="same")])
        [second] = fifo_queue.send([OutgoingMessage(body="two", group="g", dedup_id="same")])

        assert second.ok
        assert second.message_id == first.message_id
        assert bodies([take_one(fifo_queue)]) == ["one"]
        assert fifo_queue.stats().visible == 0

    def test_an_acked_message_is_still_recognised(self, fifo_queue: Queue) -> None:
        [first] = fifo_queue.send(ordered("g", "one"))
        fifo_queue.ack([take_one(fifo_queue)])

        [again] = fifo_queue.send(ordered("g", "one"))

        assert again.message_id == first.message_id
        assert fifo_queue.receive() == []

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

    @pytest.mark.parametrize(("scope", "messages"), [("queue", 1), ("group", 2)])
    def test_groups_share_the_dedup_ids_of_their_queue_unless_the_scope_is_the_group(
        self, ground: QueueFixture, scope: str, messages: int
    ) -> None:
        queue = ground.create(fifo=True, dedup_scope=scope)
        same = [OutgoingMessage(body, group=group, dedup_id="same") for body, group in ("1a", "2b", "3a")]

        results = queue.send(same)

        assert results[0].message_id == results[2].message_id
        assert len({result.message_id for result in results}) == messages
        assert sorted(drained(queue, messages)) == ["1", "2"][:messages]

    def test_a_standard_queue_recognises_nothing(self, queue: Queue) -> None:
        first, second = queue.send(texts("same", "same"))

        assert first.message_id != second.message_id
        assert bodies(take(queue, 2)) == ["same", "same"]
