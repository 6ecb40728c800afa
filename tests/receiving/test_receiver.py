"""The receiver on a raw queue: each message is settled as `decide` says."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest
from tests.waiting import NEVER_SECONDS, eventually

from postroad import Backend, Delivery, NonRetryable, OutgoingMessage, Queue, QueueSpec, Retryable
from postroad.errors import ConfigurationError, InvalidInput
from postroad.queues.markers import read_dead
from postroad.receiving import Ack, BreakerState, CircuitBreakerConfig, Defer, Outcome, Receiver, Reject, Retry


def send(queue: Queue, *bodies: str, group: str | None = None) -> None:
    fifo = queue.traits.fifo
    for body in bodies:
        queue.send([OutgoingMessage(body, group=(group or "g") if fifo else None, dedup_id=body if fifo else None)])


@pytest.mark.parametrize("outcome", [Retry, Defer])
@pytest.mark.parametrize("after", [-1, 43_201, float("nan"), float("inf"), "60"])
def test_a_delay_that_no_queue_can_keep_is_a_failure_of_decide(
    queue: Queue, dead: Queue, outcome: Any, after: Any
) -> None:
    send(queue, "one")

    counted = Receiver(queue, lambda delivery: outcome(after), max_receives=1).run_once()

    assert counted["rejected"] == 1
    [letter] = dead.peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert f"after: {after!r} is not a number of seconds from 0 to 43200" in str(marker.error)


@pytest.mark.parametrize("outcome", [lambda error: Retry(error=error), lambda error: Reject("invalid", error)])
def test_an_error_that_is_no_text_is_a_failure_of_decide(queue: Queue, dead: Queue, outcome: Any) -> None:
    send(queue, "one")

    counted = Receiver(queue, lambda delivery: outcome(ValueError("no image")), max_receives=1).run_once()

    assert counted["rejected"] == 1
    [letter] = dead.peek()
    assert "error: ValueError('no image') is not text, such as str(error)" in str(read_dead(letter.attributes))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("queue", "jobs"),
        ("queue", None),
        ("decide", None),
        ("decide", Ack()),
        ("dead_letters", "dead"),
        ("breaker", 5),
        ("on_lost", 5),
        ("on_extended", "x"),
    ],
)
def test_what_is_no_queue_no_function_or_no_breaker_is_refused_by_name(queue: Queue, field: str, wrong: Any) -> None:
    arguments: dict[str, Any] = {"queue": queue, "decide": lambda delivery: Ack(), field: wrong}

    with pytest.raises(ConfigurationError) as caught:
        Receiver(**arguments)

    assert (caught.value.field, str(caught.value).startswith(f"{field}: {wrong!r} is not a ")) == (field, True)


@pytest.mark.parametrize("wrong", [-1, float("nan"), "x", None])
def test_what_is_no_time_to_wait_is_refused(queue: Queue, wrong: Any) -> None:
    receiver = Receiver(queue, lambda delivery: Ack())

    with pytest.raises(InvalidInput, match=r"^wait: "):
        receiver.run_once(wait=wrong)
    with pytest.raises(InvalidInput, match=r"^timeout: "):
        receiver.stop(wrong)


def test_an_acked_message_is_gone(queue: Queue) -> None:
    send(queue, "one")
    receiver = Receiver(queue, lambda delivery: Ack())

    counted = receiver.run_once()

    assert (counted["received"], counted["acked"]) == (1, 1)
    assert queue.stats().visible == queue.stats().in_flight == 0


def test_a_message_that_comes_while_the_ack_of_another_is_under_way_is_handled(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    acking, go_on = threading.Event(), threading.Event()
    handled: list[bytes] = []
    ack = queue.ack

    def ack_slowly(deliveries: Sequence[Delivery]) -> Any:
        acking.set()
        go_on.wait(NEVER_SECONDS)
        return ack(deliveries)

    def decide(delivery: Delivery) -> Outcome:
        handled.append(delivery.body)
        return Ack()

    monkeypatch.setattr(queue, "ack", ack_slowly)
    receiver = Receiver(queue, decide)
    send(queue, "first")
    receiver.start()
    assert acking.wait(NEVER_SECONDS)

    send(queue, "second")
    go_on.set()

    eventually(lambda: handled == [b"first", b"second"])
    assert receiver.stop()
    assert queue.stats().visible == queue.stats().in_flight == 0


def test_a_retried_message_comes_again_after_its_delay(queue: Queue) -> None:
    send(queue, "one")
    receiver = Receiver(queue, lambda delivery: Retry(error="not now"), retry_delays=(30,))

    receiver.run_once()

    assert receiver.counts["retried"] == 1
    assert (queue.stats().visible, queue.receive()) == (0, [])


def test_what_decide_raises_is_a_retry_with_the_error(queue: Queue, dead: Queue) -> None:
    send(queue, "one")

    def decide(delivery: Delivery) -> Outcome:
        raise ValueError("no such order")

    receiver = Receiver(queue, decide, retry_delays=(0,), max_receives=2)
    receiver.run_once()
    receiver.run_once()

    (letter,) = dead.peek()
    assert letter.body == b"one"
    found = read_dead(letter.attributes)
    assert found is not None
    assert (found.error, found.reason) == ("ValueError: no such order [test_receiver.py:decide]", "handler_failed")


@pytest.mark.parametrize("wrong", [None, Ack, "ack", [Ack()]])
def test_a_decide_that_returns_no_outcome_is_a_failure_that_says_so(queue: Queue, dead: Queue, wrong: object) -> None:
    send(queue, "one")

    receiver = Receiver(queue, lambda delivery: wrong, max_receives=1)  # type: ignore[arg-type]  # wrong on purpose
    receiver.run_once()

    (letter,) = dead.peek()
    found = read_dead(letter.attributes)
    assert found is not None
    assert found.error is not None
    assert "return Ack(), Retry(…), Reject(…) or Defer(…)" in found.error
    assert receiver.counts["rejected"] == 1


@pytest.mark.parametrize("wrong", [None, [], [Ack()], [Ack(), None]])
def test_a_decide_together_that_returns_too_few_outcomes_fails_for_all_of_them(queue: Queue, wrong: Any) -> None:
    send(queue, *"ab")

    receiver = Receiver(queue, lambda deliveries: wrong, together=2, retry_delays=(30,))
    receiver.run_once()

    assert receiver.counts == {"received": 2, "retried": 2}


def test_a_plain_function_may_return_a_coroutine(queue: Queue) -> None:
    async def one(delivery: Delivery) -> Outcome:
        return Ack()

    async def several(deliveries: Sequence[Delivery]) -> list[Outcome]:
        return [Ack() for _ in deliveries]

    send(queue, *"abc")
    alone = Receiver(queue, lambda delivery: one(delivery), batch=1)
    together = Receiver(queue, lambda deliveries: several(deliveries), together=2)
    alone.run_once()
    together.run_once()

    assert (alone.counts["acked"], together.counts["acked"]) == (1, 2)


def test_an_async_decide_gets_several_messages_together(queue: Queue) -> None:
    async def decide(deliveries: Sequence[Delivery]) -> list[Outcome]:
        return [Ack() if delivery.body != b"b" else Retry(30) for delivery in deliveries]

    send(queue, *"abc")
    receiver = Receiver(queue, decide, together=3)
    receiver.run_once()

    assert (receiver.counts["acked"], receiver.counts["retried"]) == (2, 1)


def test_a_failure_is_logged_with_its_error_its_attempt_and_the_pause(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    send(queue, "one")

    def decide(delivery: Delivery) -> Outcome:
        raise ValueError("no such order, password=hunter2")

    with caplog.at_level(logging.DEBUG, logger="postroad.receiving"):
        Receiver(queue, decide, retry_delays=(30,)).run_once()

    lines = {record.msg["event"]: record.msg for record in caplog.records if isinstance(record.msg, dict)}
    retried = lines["receiver_retried"]
    assert (retried["attempt"], retried["retry_in_seconds"]) == (1, 30)
    assert retried["error"].startswith("ValueError: no such order")
    assert retried["error"].endswith("[test_receiver.py:decide]")
    assert "in decide" in lines["receiver_traceback"]["traceback"]
    assert "hunter2" not in caplog.text


def test_a_lost_lease_is_reported_and_its_outcome_is_not_carried_out(backend: Backend) -> None:
    queue = backend.create_queue(QueueSpec("short", visibility=0.3))
    send(queue, "one")
    lost: list[str] = []

    def decide(delivery: Delivery) -> Outcome:
        queue.ack([delivery])
        eventually(lambda: lost)
        return Retry(30)

    receiver = Receiver(queue, decide, on_lost=lambda delivery: lost.append(delivery.message_id))
    receiver.run_once()

    assert len(lost) == 1
    assert receiver.counts == {"received": 1, "lost": 1}


def test_a_breaker_stops_receiving_for_a_while_after_failures_in_a_row(queue: Queue) -> None:
    send(queue, *"abc")
    breaker = CircuitBreakerConfig(failure_threshold=2, recovery_timeout_seconds=0.2)
    outcomes: list[Outcome] = [Retry(0), Retry(0), Ack()]
    receiver = Receiver(queue, lambda delivery: outcomes.pop(0), batch=1, breaker=breaker)

    polls = [receiver.run_once() for _ in range(3)]
    eventually(lambda: receiver.run_once().get("acked"))

    assert [poll.get("received", 0) for poll in polls] == [1, 1, 0]
    assert receiver.breaker is not None
    assert receiver.breaker.state == "closed"


class _BrokenBreaker:
    """A breaker of the user's whose every call fails, so that the receiver's thread ends."""

    state: BreakerState = "closed"

    def pause(self) -> NoReturn:
        raise RuntimeError("the breaker is broken")

    succeeded = failed = pause


def test_run_ends_with_the_error_that_ended_the_thread(queue: Queue) -> None:
    receiver = Receiver(queue, lambda delivery: Ack(), breaker=_BrokenBreaker())

    with pytest.raises(RuntimeError, match="the breaker is broken"):
        receiver.run()
    assert not receiver.is_running


def test_arun_ends_with_the_error_that_ended_the_thread(queue: Queue) -> None:
    receiver = Receiver(queue, lambda delivery: Ack(), breaker=_BrokenBreaker())

    async def main() -> None:
        async with asyncio.timeout(NEVER_SECONDS):
            await receiver.arun()

    with pytest.raises(RuntimeError, match="the breaker is broken"):
        asyncio.run(main())
    assert not receiver.is_running


def test_arun_ends_when_the_receiver_is_stopped_elsewhere(queue: Queue) -> None:
    receiver = Receiver(queue, lambda delivery: Ack(), wait=0.1)

    async def main() -> None:
        async with asyncio.timeout(NEVER_SECONDS):
            running = asyncio.create_task(receiver.arun())
            while not receiver.is_running:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(receiver.stop)
            await running

    asyncio.run(main())


def test_a_rejected_message_rests_in_the_dead_letters_with_its_reason(queue: Queue, dead: Queue) -> None:
    send(queue, "one")

    Receiver(queue, lambda delivery: Reject("invalid", "no number")).run_once()

    (letter,) = dead.peek()
    found = read_dead(letter.attributes)
    assert found is not None
    assert (found.reason, found.error) == ("invalid", "no number")


def test_rejected_messages_may_be_sent_to_another_queue(backend: Backend, queue: Queue) -> None:
    elsewhere = backend.create_queue(QueueSpec("elsewhere"))
    send(queue, "one")

    Receiver(queue, lambda delivery: Reject("invalid"), dead_letters=elsewhere).run_once()

    assert [letter.body for letter in elsewhere.peek()] == [b"one"]
    assert queue.stats().visible == 0


def test_a_deferred_message_comes_again_without_counting_as_an_attempt(queue: Queue) -> None:
    send(queue, "one")
    attempts: list[int] = []
    outcomes: list[Outcome] = [Defer(0.05), Defer(0.05), Ack()]

    def decide(delivery: Delivery) -> Outcome:
        attempts.append(receiver.attempt(delivery))
        return outcomes.pop(0)

    receiver = Receiver(queue, decide, max_receives=2)
    eventually(lambda: receiver.run_once().get("acked"))

    assert attempts == [1, 1, 1]


def test_a_deferred_message_of_a_group_holds_back_the_others_and_costs_none_of_them_a_receive(fifo: Queue) -> None:
    send(fifo, "a1", "a2", group="a")
    outcomes: list[Outcome] = [Defer(0.05)]
    seen: list[tuple[bytes, int]] = []

    def decide(delivery: Delivery) -> Outcome:
        seen.append((delivery.body, delivery.receive_count))
        return outcomes.pop() if outcomes else Ack()

    receiver = Receiver(fifo, decide, max_receives=1)
    eventually(lambda: receiver.run_once() and receiver.counts.get("acked") == 2)

    assert seen == [(b"a1", 1), (b"a1", 1), (b"a2", 1)]


def test_a_message_that_a_stop_hands_back_costs_no_attempt_in_another_process_either(queue: Queue) -> None:
    send(queue, *"ab")
    receiver = Receiver(queue, lambda delivery: Ack(), wait=0.1)

    def stops(delivery: Delivery) -> Outcome:
        receiver.stop()
        return Ack()

    receiver = Receiver(queue, stops, wait=0.1)
    receiver.start()
    eventually(lambda: receiver.counts.get("acked") and queue.stats().visible == 1)

    assert [delivery.receive_count for delivery in queue.receive()] == [1]


def test_several_messages_are_decided_together(queue: Queue) -> None:
    send(queue, *"abcd")
    calls: list[list[bytes]] = []

    def decide(deliveries: Sequence[Delivery]) -> list[Outcome]:
        calls.append([delivery.body for delivery in deliveries])
        return [Ack() if delivery.body != b"c" else Retry(30) for delivery in deliveries]

    receiver = Receiver(queue, decide, together=3)
    receiver.run_once()

    assert [len(call) for call in calls] == [3, 1]
    assert (receiver.counts["acked"], receiver.counts["retried"]) == (3, 1)


def test_a_failed_message_holds_back_its_group_and_no_other(fifo: Queue) -> None:
    send(fifo, "a1", "a2", group="a")
    send(fifo, "b1", group="b")
    seen: list[bytes] = []

    def decide(delivery: Delivery) -> Outcome:
        seen.append(delivery.body)
        return Retry(30, "not now") if delivery.body == b"a1" else Ack()

    receiver = Receiver(fifo, decide, concurrency=2)
    receiver.run_once()

    assert sorted(seen) == [b"a1", b"b1"]
    assert receiver.counts["released"] == 1


def test_messages_that_a_stop_hands_back_cost_no_attempt(queue: Queue) -> None:
    send(queue, *"abc")
    began, go_on = threading.Event(), threading.Event()

    def decide(delivery: Delivery) -> Outcome:
        began.set()
        go_on.wait(120)
        return Ack()

    receiver = Receiver(queue, decide, wait=0.1)
    receiver.start()
    began.wait(120)
    stopping = threading.Thread(target=receiver.stop)
    stopping.start()
    eventually(lambda: queue.stats().visible == 2)
    go_on.set()
    stopping.join(120)

    assert (receiver.counts["acked"], receiver.counts["released"]) == (1, 2)
    assert [receiver.attempt(delivery) for delivery in queue.receive()] == [1, 1]


def test_a_lease_is_extended_for_as_long_as_its_message_is_handled(backend: Backend) -> None:
    queue = backend.create_queue(QueueSpec("short", visibility=3))
    send(queue, "one")
    extended: list[str] = []

    def decide(delivery: Delivery) -> Outcome:
        eventually(lambda: len(extended) >= 3)
        return Ack()

    receiver = Receiver(queue, decide, on_extended=lambda delivery: extended.append(delivery.message_id))
    receiver.run_once()

    assert receiver.counts["acked"] == 1
    assert queue.receive(wait=0.5) == []


def test_only_what_can_begin_is_fetched_without_prefetch(queue: Queue) -> None:
    send(queue, *"abcdef")
    began = threading.Semaphore(0)
    go_on = threading.Event()

    def decide(delivery: Delivery) -> Outcome:
        began.release()
        go_on.wait(120)
        return Ack()

    receiver = Receiver(queue, decide, concurrency=2, prefetch=False, wait=0.1)
    receiver.start()
    assert began.acquire(timeout=120)
    assert began.acquire(timeout=120)
    held = queue.stats().in_flight
    go_on.set()
    eventually(lambda: receiver.counts.get("acked") == 6)
    receiver.stop()

    assert held == 2


@pytest.mark.parametrize(
    "wrong",
    [
        *({"concurrency": 0}, {"batch": True}, {"together": "3"}, {"wait": 21}, {"max_receives": 0}),
        *({"retry_delays": (-1,)}, {"retry_delays": "123"}, {"visibility": -1}, {"extend_every": 31}),
    ],
)
def test_arguments_out_of_their_bounds_are_refused_by_name(queue: Queue, wrong: dict[str, object]) -> None:
    (name,) = wrong

    with pytest.raises(ConfigurationError, match=name) as caught:
        Receiver(queue, lambda delivery: Ack(), **wrong)  # type: ignore[arg-type]  # wrong on purpose

    assert caught.value.field == name


def test_it_cannot_be_started_twice_and_may_be_stopped_twice(queue: Queue) -> None:
    receiver = Receiver(queue, lambda delivery: Ack(), wait=0.1)
    receiver.start()

    with pytest.raises(RuntimeError, match="already started"):
        receiver.start()

    assert receiver.stop()
    assert receiver.stop()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_decide_that_raises_says_whether_and_when_its_message_comes_again(queue: Queue, kind: str) -> None:
    errors: list[Exception] = [Retryable("later", after=0), NonRetryable("never")]

    def decide(delivery: Delivery) -> Outcome:
        raise errors.pop(0)

    async def adecide(delivery: Delivery) -> Outcome:
        return decide(delivery)

    queue.send([OutgoingMessage("one")])
    receiver = Receiver(queue, decide if kind == "plain" else adecide, retry_delays=(60,))

    first, second = receiver.run_once(), receiver.run_once()

    assert (first["retried"], second["rejected"]) == (1, 1)
