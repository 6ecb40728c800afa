"""Leases: a lease hides a message for its time, and a receipt is valid for one lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from postroad.errors import InvalidInput, InvalidMessage, StaleReceipt
from postroad.queues import AckResult, Queue, Watchable
from postroad.receiving import Defer, Receiver
from postroad.testing.conformance import needs, refuses
from postroad.testing.queues.fixture import (
    ACK,
    LEASE,
    REJECT,
    RELEASE,
    VERBS,
    QueueFixture,
    QueueSuite,
    Verb,
    bodies,
    ordered,
    take,
    take_one,
    texts,
)

LATE_ACKS = "the traits say that a late ack on a standard queue answers success"
SHORTEN: list[Callable[[Queue], object]] = [
    lambda queue: take_one(queue, visibility=LEASE),
    lambda queue: queue.extend([take_one(queue)], seconds=1),
    lambda queue: queue.release([take_one(queue)], after=1),
]


class LeaseRules(QueueSuite):
    """Visibility, extensions, releases and stale receipts."""

    def test_an_expired_lease_comes_back_with_a_higher_receive_count(self, ground: QueueFixture) -> None:
        queue, first = ground.leased("again", visibility=LEASE)

        ground.outlast_lease()
        second = take_one(queue)

        assert second.message_id == first.message_id
        assert (first.receive_count, second.receive_count) == (1, 2)
        assert second.receipt != first.receipt
        assert second.first_received_at == first.first_received_at

    @pytest.mark.parametrize("shorten", SHORTEN, ids=["receive", "extend", "release"])
    def test_a_receive_an_extension_or_a_release_may_end_a_lease_earlier(
        self, ground: QueueFixture, shorten: Callable[[Queue], object]
    ) -> None:
        queue = ground.filled("short", visibility=60)

        shorten(queue)
        early = queue.receive()
        ground.outlast_lease()

        assert early == []
        assert take_one(queue).receive_count == 2

    @pytest.mark.parametrize("step", [-86_400.0, 3_600.0])
    def test_a_wall_clock_that_jumps_ends_no_lease_and_no_delay(self, ground: QueueFixture, step: float) -> None:
        queue = ground.create(visibility=60)
        clock = ground.fake_clock()
        queue.send([*texts("held"), *texts("delayed", delay=60)])
        take_one(queue)

        clock.step(step)
        early = queue.receive()
        clock.advance(61)

        assert early == []
        assert sorted(bodies(take(queue, 2))) == ["delayed", "held"]

    def test_an_extended_lease_lasts_from_now(self, ground: QueueFixture) -> None:
        queue, held = ground.leased("long", visibility=LEASE)

        [result] = queue.extend([held], seconds=60)
        ground.outlast_lease()

        assert result.ok
        assert queue.receive() == []
        assert queue.ack([held])[0].ok

    def test_a_lease_lasts_twelve_hours_at_most_however_often_it_is_extended(self, ground: QueueFixture) -> None:
        queue = ground.filled("held")
        held = take_one(queue, visibility=43_200)

        ground.jump(3_600)
        queue.extend([held], seconds=43_200)
        ground.jump(43_200 - 3_600 + 1)

        assert take_one(queue).receive_count == 2

    @pytest.mark.parametrize("seconds", [-1, 43_201, float("nan")])
    def test_extensions_and_releases_out_of_range_are_refused(self, ground: QueueFixture, seconds: float) -> None:
        queue, held = ground.leased("held", visibility=60)

        with refuses(InvalidInput, "seconds"):
            queue.extend([held], seconds=seconds)
        with refuses(InvalidInput, "after", empty=queue):
            queue.release([held], after=seconds)

    def test_a_released_message_comes_back_at_once(self, ground: QueueFixture) -> None:
        queue = ground.filled("back", visibility=60)

        [result] = queue.release([take_one(queue)])

        assert result.ok
        assert take_one(queue).receive_count == 2

    @pytest.mark.parametrize("fifo", [False, True])
    def test_a_deferred_message_comes_later_and_its_receive_counts_only_where_the_traits_say_so(
        self, ground: QueueFixture, fifo: bool
    ) -> None:
        queue = ground.create(fifo=fifo, visibility=60)
        queue.send(ordered("g", "first", "behind") if fifo else texts("first"))

        counted = Receiver(queue, lambda delivery: Defer(1)).run_once(wait=2.0)
        early = queue.receive()
        ground.outlast_lease()
        later = take(queue, 2 if fifo else 1)

        assert counted["retried" if queue.traits.defers_by == "retry" else "deferred"] == 1
        assert early == []
        assert bodies(later) == (["first", "behind"] if fifo else ["first"])
        assert later[0].receive_count == (2 if queue.traits.defers_by == "retry" else 1)

    def test_a_receive_that_is_taken_back_leaves_the_message_as_it_was(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters(visibility=60, max_receives=1)
        if queue.traits.defers_by != "undo":
            pytest.skip("the queue cannot take back a receive")
        undo = cast(Watchable, queue).undo
        queue.send(texts("back"))

        for _ in range(3):
            [result] = undo([take_one(queue)])
            assert result.ok
        [again] = undo([take_one(queue)], after=60)

        assert again.ok
        assert (queue.stats().visible, queue.receive(), dead.stats().visible) == (0, [], 0)

    def test_a_late_ack_on_a_standard_queue_counts_while_nobody_else_has_the_message(
        self, ground: QueueFixture
    ) -> None:
        queue, held = ground.leased("late", visibility=LEASE)

        ground.outlast_lease()
        [result] = queue.ack([held])

        assert result.ok
        assert queue.receive() == []

    def test_a_late_ack_on_a_fifo_queue_is_stale(self, ground: QueueFixture) -> None:
        queue, held = ground.leased("late", fifo=True, visibility=LEASE)

        ground.outlast_lease()
        [result] = queue.ack([held])

        assert _is_stale(result)
        assert take_one(queue).receive_count == 2

    @pytest.mark.parametrize("fifo", [False, True])
    def test_the_ack_of_a_former_receiver_is_stale(self, ground: QueueFixture, fifo: bool) -> None:
        queue = ground.create(fifo=fifo, visibility=LEASE)
        queue.send(ordered("g", "one") if fifo else texts("one"))
        former = take_one(queue)
        ground.outlast_lease()
        holder = take_one(queue, visibility=60)
        needs(fifo or queue.traits.tells_stale_acks, LATE_ACKS)

        [result] = queue.ack([former])

        assert _is_stale(result)
        assert queue.ack([holder])[0].ok

    @pytest.mark.parametrize("act", VERBS)
    def test_extending_or_releasing_after_the_lease_is_stale(self, ground: QueueFixture, act: Verb) -> None:
        queue, held = ground.leased("one", visibility=LEASE)

        ground.outlast_lease()
        [result] = act(queue, [held])

        assert _is_stale(result)
        assert take_one(queue).receive_count == 2

    @pytest.mark.parametrize("act", [pytest.param(ACK, id="ack"), *VERBS])
    @pytest.mark.parametrize("settle", [ACK, RELEASE], ids=["acked", "released"])
    def test_the_receipt_of_a_settled_message_is_stale(self, ground: QueueFixture, settle: Verb, act: Verb) -> None:
        queue = ground.create(visibility=60)
        needs(queue.traits.tells_stale_acks or (settle is ACK and act is not ACK), LATE_ACKS)
        queue.send(texts("one"))
        held = take_one(queue)
        settle(queue, [held])

        [result] = act(queue, [held])

        assert _is_stale(result)
        assert [each.receive_count for each in queue.receive()] == ([] if settle is ACK else [2])

    def test_an_old_and_a_new_receipt_of_one_message_are_told_apart_in_one_ack(self, ground: QueueFixture) -> None:
        queue = ground.create()
        needs(queue.traits.tells_stale_acks, LATE_ACKS)
        queue.send(texts("one"))
        old = take_one(queue)
        ground.outlast_lease()
        new = take_one(queue)

        late, timely, again = queue.ack([old, new, new])

        assert _is_stale(late)
        assert timely.ok
        assert _is_stale(again)

    @pytest.mark.parametrize("act", [pytest.param(ACK, id="ack"), *VERBS, pytest.param(REJECT, id="reject")])
    def test_what_is_no_delivery_is_refused_and_its_neighbours_stay_leased(
        self, ground: QueueFixture, act: Verb
    ) -> None:
        queue, dead = ground.create_with_dead_letters("held", visibility=60)
        held = take_one(queue)
        unread = msgspec.structs.replace(held, receipt=5)
        mistakes: list[tuple[str, Any]] = [
            ("deliveries", 5),
            ("deliveries", None),
            ("deliveries", held.receipt),
            ("deliveries", iter([held])),
            ("deliveries[1]", [held, 5]),
            ("deliveries[1]", [held, None]),
            ("deliveries[1]", (held, held.receipt)),
            ("deliveries[1]", [held, unread]),
        ]

        for field, mistake in mistakes:
            with refuses(InvalidMessage, field, match="is not a Delivery"):
                act(queue, mistake)

        assert (queue.receive(), dead.receive()) == ([], [])
        assert queue.ack([held])[0].ok

    def test_errors_and_reasons_that_are_no_text_are_refused(self, ground: QueueFixture) -> None:
        queue, dead = ground.create_with_dead_letters("held", visibility=60)
        held, mistake = take_one(queue), cast("str", 5)
        attempts: list[tuple[str, Callable[[], object]]] = [
            ("error", lambda: queue.release([held], error=mistake)),
            ("error", lambda: queue.reject([held], reason="no", error=mistake)),
            ("reason", lambda: queue.reject([held], reason=mistake)),
        ]

        for field, attempt in attempts:
            with refuses(InvalidInput, field, match="is not text"):
                attempt()

        assert (queue.receive(), dead.receive()) == ([], [])
        assert queue.ack([held])[0].ok


def _is_stale(result: AckResult) -> bool:
    return not result.ok and isinstance(result.error, StaleReceipt)
