"""Delivery: a message is received as it was sent, by one receiver at a time, and soon."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from postroad.errors import InvalidInput, StaleReceipt
from postroad.queues import Delivery, OutgoingMessage, Queue
from postroad.testing.conformance import cases, needs, refuses, soon
from postroad.testing.queues.fixture import QueueFixture, QueueSuite, bodies, take, take_one, texts

BAD_ARGUMENTS = {
    "max_messages": (0, 1_001, True),
    "wait": (-1, 20.5, float("nan")),
    "visibility": (-1, 43_201),
}


class DeliveryRules(QueueSuite):
    """Sending, receiving, waiting, delays, statistics and peeking."""

    def test_a_sent_message_is_received_as_it_was_sent(self, queue: Queue) -> None:
        [sent] = queue.send([OutgoingMessage(body='{"é": "\U0001f4ef"}', attributes={"EventType": "Placed", "n": "1"})])
        received = take_one(queue)

        assert sent.ok
        assert received.message_id == sent.message_id
        assert received.body == '{"é": "\U0001f4ef"}'.encode()
        assert received.attributes == {"EventType": "Placed", "n": "1"}
        assert received.receive_count == 1
        assert received.sent_at.tzinfo is not None
        assert received.first_received_at >= received.sent_at - timedelta(seconds=1)

    def test_bytes_and_text_are_the_same_body(self, queue: Queue) -> None:
        queue.send([OutgoingMessage(body=b"same"), OutgoingMessage(body="same")])

        assert bodies(take(queue, 2)) == ["same", "same"]

    def test_an_acknowledged_send_survives_the_end_of_the_process(self, ground: QueueFixture) -> None:
        queue = ground.filled("kept")

        again = ground.reopened(queue)

        assert bodies([take_one(again)]) == ["kept"]

    def test_an_acked_message_is_gone(self, ground: QueueFixture) -> None:
        queue = ground.filled("one")

        [result] = queue.ack([take_one(queue)])
        ground.outlast_lease()

        assert result.ok
        assert queue.receive() == []

    @pytest.mark.parametrize("sent", [[f"body-{n}" for n in range(23)], [each * 600_000 for each in "abc"]], ids=len)
    def test_a_batch_above_the_limits_of_a_call_is_sent_received_and_acked_whole(
        self, ground: QueueFixture, sent: list[str]
    ) -> None:
        queue = ground.create(visibility=60)

        results = queue.send(texts(*sent))
        received = take(queue, len(sent))
        acked = queue.ack(received)

        assert len({result.message_id for result in results if result.ok}) == len(sent)
        assert sorted(bodies(received)) == sorted(sent)
        assert [result.ok for result in acked] == [True] * len(sent)

    def test_an_empty_batch_changes_nothing(self, queue: Queue) -> None:
        assert queue.send([]) == []
        assert queue.ack([]) == []
        assert queue.extend([], seconds=5) == []
        assert queue.release([]) == []
        assert queue.receive() == []

    def test_each_entry_of_an_ack_has_its_own_outcome(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, content_dedup=True)
        queue.send(texts("late", "in time", group="g"))
        late, early = take(queue, 2)
        queue.ack([late])

        results = queue.ack([late, early])

        if queue.traits.tells_stale_acks:
            assert isinstance(results[0].error, StaleReceipt)
        assert results[1].ok
        assert queue.stats().visible + queue.stats().in_flight == 0

    def test_receive_returns_at_most_what_was_asked_for(self, ground: QueueFixture) -> None:
        queue = ground.filled("a", "b", "c")

        assert len(queue.receive(max_messages=1, wait=1)) == 1

    def test_concurrent_receivers_never_share_a_message(self, ground: QueueFixture) -> None:
        queue = ground.create(visibility=300)
        needs(queue.traits.exclusive, "the traits say that a message is nearly always with one receiver only")
        queue.send(texts(*(str(n) for n in range(60))))

        def drain(_: int) -> list[Delivery]:
            mine: list[Delivery] = []
            while received := queue.receive(max_messages=3):
                mine += received
            return mine

        with ThreadPoolExecutor(4) as pool:
            received = [delivery.message_id for mine in pool.map(drain, range(4)) for delivery in mine]

        assert len(received) == len(set(received)) == 60

    def test_a_waiting_receive_returns_as_soon_as_there_is_a_message(self, queue: Queue) -> None:
        started = time.monotonic()

        with soon(lambda: queue.send(texts("now"))):
            received = queue.receive(wait=15)
            took = time.monotonic() - started

        assert bodies(received) == ["now"]
        assert took < 5

    def test_a_waiting_receive_gives_up_after_its_wait(self, queue: Queue) -> None:
        started = time.monotonic()

        received = queue.receive(wait=1)

        assert received == []
        assert 0.9 <= time.monotonic() - started < 5

    def test_a_waiting_receive_notices_a_released_message(self, ground: QueueFixture) -> None:
        queue, held = ground.leased("back", visibility=60)

        with soon(lambda: queue.release([held])):
            received = queue.receive(wait=15)

        assert bodies(received) == ["back"]

    @pytest.mark.parametrize(("field", "value"), cases(BAD_ARGUMENTS))
    def test_receive_refuses_arguments_out_of_range(self, ground: QueueFixture, field: str, value: Any) -> None:
        queue = ground.filled("untouched")

        with refuses(InvalidInput, field, match=field):
            queue.receive(**{field: value})

        assert take_one(queue).receive_count == 1

    @pytest.mark.parametrize(("fifo", "of_queue", "of_message"), [(False, 0, 1), (False, 1, 0), (True, 1, 0)])
    def test_a_delayed_message_comes_after_its_delay_and_not_before(
        self, ground: QueueFixture, fifo: bool, of_queue: float, of_message: float
    ) -> None:
        queue = ground.create(fifo=fifo, delay=of_queue, content_dedup=fifo)

        queue.send(texts("later", group="g", delay=of_message))
        early = queue.receive()
        ground.outlast_lease()

        assert early == []
        assert bodies([take_one(queue)]) == ["later"]

    def test_messages_older_than_the_retention_vanish_and_are_counted(self, ground: QueueFixture) -> None:
        queue = ground.filled("old", retention=60)
        ground.jump(59)
        queue.send(texts("young"))

        ground.jump(2)

        assert bodies(queue.receive()) == ["young"]
        if queue.traits.counts_expired:
            assert queue.stats().expired == 1

    def test_stats_count_messages_by_their_state(self, ground: QueueFixture) -> None:
        queue = ground.create(visibility=60)
        queue.send([*texts("a", "b", "c"), *texts("d", delay=60)])

        take_one(queue)
        stats = queue.stats()

        assert (stats.visible, stats.in_flight, stats.delayed) == (2, 1, 1)

    def test_stats_tell_the_age_of_the_oldest_message(self, ground: QueueFixture) -> None:
        queue = ground.create()
        needs(queue.traits.counts_expired, "the traits say that the adapter cannot tell ages")
        queue.send(texts("old"))
        ground.jump(7)
        queue.send(texts("young"))

        age = queue.stats().oldest_age_seconds

        assert age == pytest.approx(7, abs=0.01)

    def test_peeking_shows_every_message_with_its_state_and_changes_nothing(self, ground: QueueFixture) -> None:
        queue = _clean_peeking(ground)
        queue.send([*texts("held", attributes={"k": "v"}), *texts("waiting"), *texts("delayed", delay=60)])
        held = take_one(queue)

        looks = [queue.peek() for _ in range(5)]

        assert all(look == looks[0] for look in looks)
        assert {(message.body, message.state) for message in looks[0]} == {
            (held.body, "in_flight"),
            ({b"held", b"waiting"}.difference([held.body]).pop(), "visible"),
            (b"delayed", "delayed"),
        }
        assert {message.message_id: message.receive_count for message in looks[0]}[held.message_id] == 1
        assert take_one(queue).receive_count == 1

    def test_peeking_goes_on_behind_a_message(self, ground: QueueFixture) -> None:
        queue = _clean_peeking(ground)
        queue.send(texts(*"abcde"))

        first = queue.peek(limit=2)
        rest = queue.peek(limit=10, after=first[-1].message_id)

        assert [message.body for message in [*first, *rest]] == [b"a", b"b", b"c", b"d", b"e"]

    def test_peeking_refuses_a_limit_out_of_range(self, queue: Queue) -> None:
        with refuses(InvalidInput, "limit"):
            queue.peek(limit=0)

    def test_sequences_grow_and_never_repeat(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, content_dedup=True, visibility=60)
        first = queue.send(texts("a", "b", group="g"))

        queue.ack(take(queue, 2))
        second = queue.send(texts("c", "d", group="g"))
        received = take(queue, 2)

        numbers = [result.sequence or 0 for result in [*first, *second]]
        assert numbers == sorted(set(numbers) - {0})
        assert [delivery.sequence for delivery in received] == numbers[2:]

    def test_sequences_go_on_after_a_restart_and_a_clock_that_jumped_back(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True, content_dedup=True, visibility=60)
        clock = ground.fake_clock()
        [first] = queue.send(texts("a", group="g"))
        queue.ack(take(queue, 1))

        clock.step(-86_400)
        again = ground.reopened(queue)
        [second] = again.send(texts("b", group="g"))

        assert (second.sequence or 0) > (first.sequence or 0) > 0


def _clean_peeking(ground: QueueFixture) -> Queue:
    queue = ground.create(visibility=60)
    needs(queue.traits.peeks_clean, "the traits say that peeking is receiving here")
    return queue
