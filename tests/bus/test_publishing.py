"""Publishing to other processes: what is sent, when it is tried again, and what the publisher learns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.bus.conftest import MakeBus, failing
from tests.bus.vocabulary import QUICK, Asked, Identified, Placed, Shipped, Stepped

import postroad
from postroad import OutgoingMessage, Queue, SendResult, codec
from postroad.bus import BusConfig, PublishFailed, RemoteEventBus, current_context
from postroad.bus.endpoints import Outlet, given_queue
from postroad.errors import InvalidMessage, MessageTooLarge, NotPermitted, OutcomeUnknown, Unavailable
from postroad.testing import FakeClock


class Recording:
    """A transport that keeps what it is asked to send and answers as told, the last answer for ever."""

    def __init__(self, *answers: Exception | None) -> None:
        self.requests: list[list[OutgoingMessage]] = []
        self._answers = list(answers) or [None]

    def __call__(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        self.requests.append(list(messages))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [SendResult(ok=answer is None, error=answer) for _ in messages]


def test_local_handlers_run_before_the_transport(make_bus: MakeBus, queue: Queue) -> None:
    order: list[str] = []

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        order.append("sent")
        return queue.send(messages)

    bus = make_bus(queue, send=send)
    bus.subscribe(Placed, lambda _: order.append("handled"))

    result = bus.publish(Placed())

    assert order == ["handled", "sent"]
    assert (result.ok, result.remote) == (True, "sent")


def test_without_local_dispatch_only_the_transport_gets_the_event(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    bus = make_bus(queue, replace(QUICK, local_dispatch=False))
    bus.subscribe(Placed, seen.append)

    result = bus.publish(Placed())

    assert (seen, result.handlers_invoked, result.remote) == ([], (), "sent")


def test_a_transport_failure_is_one_failure_of_the_bus_with_the_drivers_error_as_cause(
    make_bus: MakeBus, queue: Queue
) -> None:
    driver = ConnectionResetError("gone")
    error = NotPermitted("no")
    error.__cause__ = driver
    seen: list[object] = []
    bus = make_bus(queue, send=failing(error))
    bus.subscribe(Placed, seen.append)

    result = bus.publish(Placed())

    (failure,) = result.errors
    assert failure.handler == bus._sqs_publish
    assert isinstance(failure.error, PublishFailed)
    assert failure.error.__cause__ is driver
    assert (seen, result.ok, result.remote) == ([Placed()], False, "failed")


def test_a_failing_handler_does_not_keep_the_event_here(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue)
    bus.subscribe(Placed, lambda _: 1 / 0)

    result = bus.publish(Placed())

    assert (result.ok, result.remote) == (False, "sent")
    assert queue.stats().visible == 1


def test_retries_send_the_same_bytes_under_the_same_id(make_bus: MakeBus, queue: Queue) -> None:
    transport = Recording(Unavailable("busy"), Unavailable("busy"), None)
    bus = make_bus(queue, send=transport)

    result = bus.publish(Placed())

    sent = [request[0] for request in transport.requests]
    assert result.ok
    assert len(sent) == 3
    assert len({message.body for message in sent}) == 1
    assert codec.decode(sent[0].body).event_id == result.event_id


def test_the_envelope_tells_when_it_was_published(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    transport = Recording()
    bus = make_bus(queue, send=transport)
    clock.advance(60)

    bus.publish(Placed())

    assert codec.decode(transport.requests[0][0].body).created_at == clock.now()


def test_an_events_own_id_is_kept(make_bus: MakeBus, queue: Queue) -> None:
    published = Identified()

    result = make_bus(queue).publish(published)

    assert result.event_id == published.event_id


def test_attributes_tell_type_publisher_time_and_session(make_bus: MakeBus, queue: Queue, clock: FakeClock) -> None:
    transport = Recording()
    bus = make_bus(queue, send=transport)

    bus.publish(Stepped("s-1"))
    bus.publish(Stepped(""))

    with_session, without = (request[0].attributes for request in transport.requests)
    assert with_session == {
        "EventType": "tests.bus.vocabulary:Stepped",
        "PublisherId": bus.publisher_id,
        "CreatedAt": clock.now().isoformat(),
        "SessionId": "s-1",
    }
    assert "SessionId" not in without


def test_retries_stop_after_as_many_as_configured(make_bus: MakeBus, queue: Queue) -> None:
    transport = Recording(Unavailable("busy"))
    bus = make_bus(queue, replace(QUICK, publish_retries=2), send=transport)

    result = bus.publish(Placed())

    assert len(transport.requests) == 3
    assert result.remote == "failed"


@pytest.mark.parametrize("error", [NotPermitted("no"), InvalidMessage("bad")])
def test_what_cannot_go_better_is_not_tried_again(make_bus: MakeBus, queue: Queue, error: Exception) -> None:
    transport = Recording(error)
    bus = make_bus(queue, send=transport)

    result = bus.publish(Placed())

    assert (len(transport.requests), result.ok) == (1, False)


def test_an_open_outcome_is_unknown(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, send=failing(OutcomeUnknown("timeout")))

    assert bus.publish(Placed()).remote == "unknown"


def test_a_retry_that_cannot_start_in_time_is_not_made(make_bus: MakeBus, queue: Queue) -> None:
    transport = Recording(Unavailable("busy"))
    config = replace(QUICK, publish_timeout_seconds=0.2, publish_retry_delay_seconds=60)
    bus = make_bus(queue, config, send=transport)

    started = time.monotonic()
    result = bus.publish(Placed())

    assert time.monotonic() - started < 30
    assert (len(transport.requests), result.remote) == (1, "failed")


def test_a_transport_that_hangs_costs_no_more_than_the_budget(make_bus: MakeBus, queue: Queue) -> None:
    released = threading.Event()

    def hangs(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        released.wait(120)
        return queue.send(messages)

    bus = make_bus(queue, replace(QUICK, publish_timeout_seconds=0.2), send=hangs)

    started = time.monotonic()
    first = bus.publish(Placed(1))
    second = bus.publish(Placed(2))
    took = time.monotonic() - started
    released.set()

    assert took < 30
    assert (first.remote, second.remote) == ("unknown", "failed")
    assert isinstance(second.errors[0].error, PublishFailed)


def test_what_had_no_turn_in_time_is_never_sent(make_bus: MakeBus, queue: Queue) -> None:
    released = threading.Event()

    def hangs(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        released.wait(120)
        return queue.send(messages)

    bus = make_bus(queue, replace(QUICK, publish_timeout_seconds=0.1), send=hangs)
    bus.publish(Placed(1))
    bus.publish(Placed(2))

    released.set()
    bus.publish(Placed(3))

    numbers = [codec.decode(message.body).payload["number"] for message in queue.peek()]
    assert numbers == [1, 3]


def test_filters_apply_to_sending_and_not_to_local_handlers(make_bus: MakeBus, queue: Queue) -> None:
    seen: list[object] = []
    config = replace(QUICK, event_type_allowlist=frozenset({Placed, Shipped}), event_type_blocklist=frozenset({Placed}))
    bus = make_bus(queue, config)
    bus.subscribe(Placed, seen.append)

    results = [bus.publish(each) for each in (Placed(), Shipped(), Stepped("s"))]

    assert seen == [Placed()]
    assert [(result.ok, result.remote) for result in results] == [
        (True, "filtered"),
        (True, "sent"),
        (True, "filtered"),
    ]
    assert queue.stats().visible == 1


def test_concurrent_publishes_share_requests(make_bus: MakeBus, queue: Queue) -> None:
    requests: list[int] = []

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        time.sleep(0.01)
        requests.append(len(messages))
        return queue.send(messages)

    bus = make_bus(queue, send=send)
    results: list[bool] = []

    def publisher(number: int) -> None:
        results.extend(bus.publish(Placed(number)).ok for _ in range(10))

    threads = [threading.Thread(target=publisher, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [True] * 160
    assert sum(requests) == 160
    assert len(requests) <= 0.2 * 160
    assert max(requests) <= 10


def test_a_failed_entry_fails_its_own_publisher_alone(make_bus: MakeBus, queue: Queue) -> None:
    gate = threading.Event()

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        gate.wait(120)
        bad = NotPermitted("this one")
        return [
            SendResult(ok=False, error=bad) if b'"number":3' in bytes(message.body) else queue.send([message])[0]  # type: ignore[arg-type]  # bytes
            for message in messages
        ]

    bus = make_bus(queue, send=send)
    outcomes: dict[int, bool] = {}

    def publisher(number: int) -> None:
        outcomes[number] = bus.publish(Placed(number)).ok

    threads = [threading.Thread(target=publisher, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()

    assert outcomes == {0: True, 1: True, 2: True, 3: False, 4: True, 5: True}


def test_a_message_that_is_refused_does_not_drag_others_along(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, replace(QUICK, max_message_bytes=None))

    results = bus.publish_many([Placed(1), Stepped("s" * 2_000_000), Placed(2)])

    assert [result.ok for result in results] == [True, False, True]
    assert isinstance(results[1].errors[0].error, MessageTooLarge)
    assert queue.stats().visible == 2


def test_publish_many_takes_a_tenth_of_the_requests_and_keeps_the_order(make_bus: MakeBus, queue: Queue) -> None:
    transport = Recording()
    seen: list[Placed] = []
    bus = make_bus(queue, send=transport)
    bus.subscribe(Placed, seen.append)

    results = bus.publish_many(Placed(number) for number in range(100))

    assert [result.event for result in results] == seen == [Placed(number) for number in range(100)]
    assert len(transport.requests) <= 11


def test_apublish_has_the_same_result_and_does_not_block_the_loop(make_bus: MakeBus, queue: Queue) -> None:
    ticks: list[float] = []
    contexts: list[object] = []

    def slow(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        time.sleep(0.2)
        return queue.send(messages)

    async def handler(_: object) -> None:
        contexts.append(current_context())

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main() -> object:
        ticking = asyncio.create_task(tick())
        result = await bus.apublish(Placed())
        ticking.cancel()
        return result.ok, result.remote, result.handled_count

    bus = make_bus(queue, send=slow)
    bus.subscribe(Placed, handler)

    assert asyncio.run(main()) == (True, "sent", 1)
    assert contexts[0] is not None
    assert len(ticks) > 5


def test_an_event_published_inside_a_handler_tells_its_cause(make_bus: MakeBus, queue: Queue) -> None:
    transport = Recording()
    bus = make_bus(queue, send=transport)
    bus.subscribe(Placed, lambda _: bus.publish(Shipped()))

    outer = bus.publish(Placed())

    caused, root = (codec.decode(request[0].body) for request in transport.requests)
    assert (caused.causation_id, caused.correlation_id) == (str(outer.event_id), str(outer.event_id))
    assert (root.causation_id, root.correlation_id) == (None, None)
    assert transport.requests[0][0].attributes["ReplyTo"] == bus.publisher_id
    assert "ReplyTo" not in transport.requests[1][0].attributes


def test_the_deduplication_id_goes_to_fifo_queues_only(make_bus: MakeBus, queue: Queue, fifo_queue: Queue) -> None:
    standard, fifo, without = Recording(), Recording(), Recording()

    make_bus(queue, send=standard).publish(Placed())
    result = make_bus(fifo_queue, send=fifo).publish(Placed())
    make_bus(fifo_queue, replace(QUICK, enable_deduplication=False), send=without).publish(Placed())

    assert standard.requests[0][0].dedup_id is None
    assert fifo.requests[0][0].dedup_id == str(result.event_id)
    assert without.requests[0][0].dedup_id is None


def test_groups_follow_the_template_the_key_and_their_fallbacks(
    make_bus: MakeBus, queue: Queue, fifo_queue: Queue
) -> None:
    def group(bus: RemoteEventBus, event: object, key: str | None = None) -> str | None:
        bus.publish(event, key=key)
        return transport.requests[-1][0].group

    transport = Recording()
    by_session = make_bus(fifo_queue, replace(QUICK, message_group_id="s-${session_id}"), send=transport)
    plain = make_bus(fifo_queue, send=transport)
    standard = make_bus(queue, send=transport)
    configured = make_bus(queue, replace(QUICK, message_group_id="${key}"), send=transport)
    asked = Asked()

    assert group(by_session, Stepped("1")) == "s-1"
    assert group(by_session, asked) == f"s-{asked.request_id}"
    assert group(by_session, Placed()) == f"s-{by_session.publisher_id}"
    assert group(plain, Placed(), "k") == "k"
    assert group(plain, asked) == str(asked.request_id)
    assert group(plain, Placed()) == plain.publisher_id
    assert group(standard, Placed(), "k") is None
    assert group(configured, Placed(), "k") == "k"


@pytest.mark.parametrize("key", ["k" * 129, "with space", "ümlaut", ""])
def test_a_group_that_sqs_would_refuse_is_replaced_by_its_hash(make_bus: MakeBus, fifo_queue: Queue, key: str) -> None:
    transport = Recording()
    bus = make_bus(fifo_queue, send=transport)

    bus.publish(Placed(), key=key)

    group = transport.requests[0][0].group
    assert group is not None
    assert len(group) == (64 if key else 36)


def test_the_publisher_id_comes_from_argument_then_environment_then_chance(
    make_bus: MakeBus, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_chance = {make_bus(queue).publisher_id, make_bus(queue).publisher_id}
    monkeypatch.setenv("WINK_SQS_PUBLISHER_ID", "wink")
    wink = make_bus(queue, BusConfig.from_env()).publisher_id
    monkeypatch.setenv("POSTROAD_SQS_PUBLISHER_ID", "ours")
    ours = make_bus(queue).publisher_id
    given = make_bus(queue, BusConfig.from_env(publisher_id="given")).publisher_id

    assert len(by_chance) == 2
    assert (wink, ours, given) == ("wink", "ours", "given")


def test_publishing_on_a_closed_bus_fails_and_says_so(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue)
    bus.close()
    bus.close()

    result = bus.publish(Placed())

    assert (result.ok, result.remote) == (False, "failed")
    assert "closed" in str(result.errors[0].error)


def test_an_unregistered_dataclass_travels_by_being_published(make_bus: MakeBus, queue: Queue) -> None:
    @dataclass(frozen=True)
    class Fresh:
        at: timedelta

    bus = make_bus(queue)

    result = bus.publish(Fresh(timedelta(seconds=1)))

    assert result.ok
    assert codec.unwrap(codec.decode(queue.peek()[0].body)) == Fresh(timedelta(seconds=1))


def bus_with_limit(queue: Queue, send: Any, longest: float | None) -> RemoteEventBus:
    return RemoteEventBus(
        outlet=Outlet(name="work", send=send, longest=longest), inlet=given_queue(queue), config=QUICK
    )


def test_a_lone_publish_is_sent_on_its_own_thread_where_the_transport_answers_in_time(queue: Queue) -> None:
    threads: list[int] = []

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        threads.append(threading.get_ident())
        return queue.send(messages)

    for longest in (0.1, 100.0, None):
        with bus_with_limit(queue, send, longest) as bus:
            bus.publish(Placed())

    assert [thread == threading.get_ident() for thread in threads] == [True, False, False]


def test_what_arrives_while_one_sends_for_itself_goes_out_together(queue: Queue) -> None:
    requests: list[int] = []

    def send(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        time.sleep(0.02)
        requests.append(len(messages))
        return queue.send(messages)

    with bus_with_limit(queue, send, 0.1) as bus:
        threads = [
            threading.Thread(target=lambda: [bus.publish(Placed()) for _ in range(10)], daemon=True) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sum(requests) == 80
    assert len(requests) <= 0.3 * 80


def test_a_publish_joins_the_transaction_of_its_thread(tmp_path: Path) -> None:
    with postroad.connect(f"sqlite:///{tmp_path / 'bus.db'}") as backend:
        bus = backend.bus("orders", "workers", config=QUICK)

        with pytest.raises(ZeroDivisionError), backend.transaction():
            undone = bus.publish(Placed(1))
            _ = 1 / 0
        with backend.transaction():
            bus.publish(Placed(2))

        messages = backend.queue("orders--workers").peek()
    assert undone.ok
    assert [codec.decode(message.body).payload["number"] for message in messages] == [2]
