"""FIFO: order within a group, freedom between groups."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from postroad.queues import Delivery
from postroad.testing.queues.fixture import (
    LEASE,
    LEASE_OVER,
    QueueFixture,
    QueueRules,
    bodies,
    ordered,
    take,
    take_one,
)


class FifoRules(QueueRules):
    """Order, group locks and what sets a group free."""

    def test_a_group_comes_in_the_order_it_was_sent(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True)
        sent = [f"{n:02}" for n in range(25)]
        queue.send(ordered("g", *sent))

        received: list[str] = []
        while len(received) < 25:
            held = queue.receive(max_messages=4, wait=2)
            received += bodies(held)
            queue.ack(held)

        assert received == sent

    def test_one_receive_may_hold_several_messages_of_a_group_in_order(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True)
        queue.send(ordered("g", "1", "2", "3"))

        assert bodies(queue.receive(max_messages=3, wait=2)) == ["1", "2", "3"]

    def test_nothing_of_a_group_is_given_out_while_some_of_it_is_in_flight(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=60)
        queue.send(ordered("g", "1", "2"))

        take_one(queue)

        assert queue.receive() == []

    def test_a_blocked_group_does_not_hold_another(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=60)
        queue.send(ordered("a", "a1", "a2"))
        take_one(queue)

        queue.send(ordered("b", "b1", "b2"))

        assert bodies(take(queue, 2)) == ["b1", "b2"]

    def test_a_group_goes_on_when_all_its_messages_in_flight_are_acked(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=60)
        queue.send(ordered("g", "1", "2", "3"))
        first, second = take(queue, 2)

        queue.ack([first])
        still_locked = queue.receive()
        queue.ack([second])

        assert still_locked == []
        assert bodies([take_one(queue)]) == ["3"]

    def test_a_released_message_comes_before_those_behind_it(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=60)
        queue.send(ordered("g", "1", "2"))

        queue.release([take_one(queue)])

        assert bodies(take(queue, 2)) == ["1", "2"]

    def test_a_message_released_for_later_holds_its_group(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=60)
        queue.send(ordered("g", "1", "2"))

        queue.release([take_one(queue)], after=1)
        early = queue.receive()
        ground.advance(LEASE_OVER)

        assert early == []
        assert bodies(take(queue, 2)) == ["1", "2"]

    def test_expired_leases_come_back_in_order(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=LEASE)
        queue.send(ordered("g", "1", "2", "3"))
        take(queue, 2)

        ground.advance(LEASE_OVER)

        assert bodies(take(queue, 3, visibility=60)) == ["1", "2", "3"]

    def test_a_released_message_waits_for_those_of_its_group_still_in_flight(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, visibility=60)
        queue.send(ordered("g", "1", "2", "3"))
        first, second = take(queue, 2)

        queue.release([first])
        locked = queue.receive()
        queue.release([second])

        assert locked == []
        assert bodies(take(queue, 3)) == ["1", "2", "3"]

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
        if not queue.traits.ordered:
            pytest.skip("the adapter promises no order, says the trait")
        queue.send([message for group in "abcd" for message in ordered(group, "1", "2")])

        with ThreadPoolExecutor(4) as pool:
            held = list(pool.map(lambda _: queue.receive(max_messages=1, wait=2), range(4)))

        groups = [delivery.group for deliveries in held for delivery in deliveries]
        assert sorted(group for group in groups if group is not None) == ["a", "b", "c", "d"]
        assert {bodies(deliveries)[0] for deliveries in held} == {"1"}

    def test_a_dead_letter_lets_its_group_go_on(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(fifo=True, max_receives=1)
        queue.send(ordered("g", "poison", "next"))

        take_one(queue)
        ground.advance(LEASE_OVER)

        assert bodies([take_one(queue)]) == ["next"]
        assert bodies([take_one(dead)]) == ["poison"]
