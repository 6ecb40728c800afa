"""The bus on a stream."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.bus.proxies import Failing
from tests.bus.vocabulary import QUICK, Placed, Shipped
from tests.memory import memory_blobs
from tests.waiting import eventually

import postroad
from postroad import Backend, Queue, QueueSpec, Record, Stream, codec, errors
from postroad.bus import BusConfig, KinesisEventBus, current_context
from postroad.testing import FakeClock

MakeBus = Callable[..., KinesisEventBus]


@pytest.fixture
def stream(slow_backend: Backend) -> Stream:
    return slow_backend.stream("events", shards=2)


@pytest.fixture
def narrow(slow_backend: Backend) -> Stream:
    return slow_backend.stream("narrow", shards=1)


@pytest.fixture
def letters(slow_backend: Backend) -> Queue:
    return slow_backend.create_queue(QueueSpec("letters"))


@pytest.fixture
def make(clock: FakeClock) -> Iterator[MakeBus]:
    made: list[KinesisEventBus] = []

    def make(stream: Stream, *, config: BusConfig = QUICK, **options: Any) -> KinesisEventBus:
        bus = KinesisEventBus(stream=stream, config=config, clock=clock, **options)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        bus.close()


def heard(bus: KinesisEventBus) -> list[int]:
    """The numbers of the events that the bus handles, in order."""
    numbers: list[int] = []
    bus.subscribe(Placed, lambda event: numbers.append(event.number))
    return numbers


def test_without_a_consumer_every_process_hears_what_comes_after_its_start(stream: Stream, make: MakeBus) -> None:
    publisher, first, second = make(stream), make(stream), make(stream)
    numbers = [heard(first), heard(second)]
    publisher.publish(Placed(0))
    first.start_receiver()
    second.start_receiver()

    results = [publisher.publish(Placed(number), key=f"k{number}") for number in range(1, 6)]

    eventually(lambda: all(sorted(each) == [1, 2, 3, 4, 5] for each in numbers))
    assert all(result.ok and result.remote == "sent" for result in results)


def test_a_key_keeps_its_order(stream: Stream, make: MakeBus) -> None:
    publisher, receiver = make(stream), make(stream, consumer="workers")
    numbers = heard(receiver)
    for number in range(25):
        publisher.publish(Placed(number), key="one")

    while receiver.receive_once():
        pass

    assert numbers == list(range(25))


def test_an_own_event_handled_on_publish_is_not_repeated(stream: Stream, make: MakeBus) -> None:
    bus = make(stream, consumer="workers")
    numbers = heard(bus)

    bus.publish(Placed(1))

    assert bus.receive_once() == []
    assert numbers == [1]


def test_a_consumer_starts_at_the_oldest_record_and_goes_on_after_a_stop(
    stream: Stream, make: MakeBus, clock: FakeClock
) -> None:
    publisher = make(stream)
    publisher.publish_many([Placed(number) for number in range(3)])
    first = make(stream, consumer="workers")
    before = heard(first)
    first.receive_once()
    first.close()
    clock.advance(1)
    publisher.publish(Placed(3))

    second = make(stream, consumer="workers")
    after = heard(second)
    second.receive_once()

    assert before == [0, 1, 2]
    assert after == [3]


def test_a_crashed_worker_leaves_unhandled_records_to_the_next(narrow: Stream, make: MakeBus, clock: FakeClock) -> None:
    make(narrow).publish_many([Placed(number) for number in range(3)])
    crashed = make(narrow, consumer="workers")
    taken = crashed._queue.receive()
    crashed._queue.ack(taken[:1])

    successor = make(narrow, consumer="workers")
    numbers = heard(successor)
    too_early = successor.receive_once()
    clock.advance(31)
    successor.receive_once()
    late = crashed._queue.ack(taken[1:])

    assert too_early == []
    assert numbers == [1, 2]
    assert [result.ok for result in late] == [False, False]


def test_what_is_no_delivery_is_refused_and_its_neighbours_stay_given(narrow: Stream, make: MakeBus) -> None:
    make(narrow).publish(Placed(1))
    queue = make(narrow, consumer="workers")._queue
    [held] = queue.receive()
    mistakes: list[tuple[str, Any]] = [
        ("deliveries", 5),
        ("deliveries", held.receipt),
        ("deliveries", iter([held])),
        ("deliveries[1]", [held, 5]),
    ]
    verbs: list[Callable[[Any], object]] = [queue.ack, lambda each: queue.extend(each, seconds=5), queue.release]

    for field, mistake in mistakes:
        for verb in verbs:
            with pytest.raises(errors.InvalidMessage, match="is not a Delivery") as refused:
                verb(mistake)
            assert refused.value.field == field

    assert narrow.position("workers", narrow.shards()[0]) is None
    assert queue.ack([held])[0].ok


def test_times_and_errors_that_make_no_sense_are_refused(narrow: Stream, make: MakeBus) -> None:
    make(narrow).publish(Placed(1))
    queue = make(narrow, consumer="workers")._queue
    [held], mistake = queue.receive(), cast("Any", "5")
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("seconds", lambda: queue.extend([held], seconds=mistake)),
        ("after", lambda: queue.release([held], after=-1)),
        ("error", lambda: queue.release([held], error=cast("Any", 5))),
    ]

    for field, attempt in attempts:
        with pytest.raises(errors.InvalidInput) as refused:
            attempt()
        assert refused.value.field == field

    assert queue.ack([held])[0].ok


def test_workers_of_one_consumer_share_the_shards(stream: Stream, make: MakeBus) -> None:
    publisher, first, second = make(stream), make(stream, consumer="w"), make(stream, consumer="w")
    numbers = [heard(first), heard(second)]
    for bus in (first, second, first, second):
        bus.receive_once()
        clock_of(bus).advance(11)
    publisher.publish_many([Placed(number) for number in range(20)])
    for number in range(20, 40):
        publisher.publish(Placed(number), key=f"k{number}")

    for _ in range(10):
        first.receive_once()
        second.receive_once()

    assert sorted(numbers[0] + numbers[1]) == list(range(40))
    assert all(numbers)


def test_a_failing_record_holds_back_its_shard_until_it_is_handled(
    narrow: Stream, make: MakeBus, clock: FakeClock
) -> None:
    config = replace(QUICK, retry_delays_seconds=(5,))
    make(narrow).publish_many([Placed(number) for number in range(4)])
    bus = make(narrow, consumer="workers", config=config)
    tries: list[int] = []

    def fails_once_on_one(event: Placed) -> None:
        tries.append(event.number)
        if tries.count(1) == 1 and event.number == 1:
            raise ValueError("not now")

    bus.subscribe(Placed, fails_once_on_one)

    bus.receive_once()
    blocked = bus.health()
    at_once = bus.receive_once()
    clock.advance(5.1)
    bus.receive_once()

    assert tries == [0, 1, 1, 2, 3]
    assert at_once == []
    assert "ValueError: not now" in str(blocked.last_error)


def test_the_position_moves_only_past_handled_records(narrow: Stream, make: MakeBus) -> None:
    make(narrow).publish_many([Placed(number) for number in range(3)])
    bus = make(narrow, consumer="workers")

    def fails_on_one(event: Placed) -> None:
        if event.number == 1:
            raise ValueError("never")

    bus.subscribe(Placed, fails_on_one)
    bus.receive_once()

    [shard] = narrow.shards()
    first, *_ = narrow.read(shard, after="trim_horizon")
    assert narrow.position("workers", shard) == first.sequence


def test_a_record_that_fails_too_often_goes_to_the_dead_letters_with_its_reason(
    narrow: Stream, letters: Queue, make: MakeBus
) -> None:
    make(narrow).publish_many([Placed(0), Placed(1)])
    bus = make(narrow, consumer="workers", dead_letter=letters)
    numbers: list[int] = []

    def fails_on_zero(event: Placed) -> None:
        numbers.append(event.number)
        if event.number == 0:
            raise ValueError("never")

    bus.subscribe(Placed, fails_on_zero)
    for _ in range(4):
        bus.receive_once()

    [letter] = letters.peek()
    marker = json.loads(letter.attributes["DeadLetter"])
    assert numbers == [0, 0, 0, 1]
    assert codec.decode(letter.body).payload == {"number": 0}
    assert (marker["source"], marker["receives"], marker["reason"]) == ("narrow", 3, "handler_failed")
    assert marker["type"] == codec.registry.name_of(Placed)
    assert bus.health().dead_lettered == 1


def test_without_dead_letters_a_failing_record_blocks_its_shard_and_health_says_so(
    narrow: Stream, make: MakeBus
) -> None:
    make(narrow).publish_many([Placed(0), Placed(1)])
    bus = make(narrow, consumer="workers")
    tries: list[int] = []

    def fails(event: Placed) -> None:
        tries.append(event.number)
        raise ValueError("never")

    bus.subscribe(Placed, fails)
    for _ in range(6):
        bus.receive_once()

    assert tries == [0] * 6
    assert "received 6 times: ValueError: never" in str(bus.health().last_error)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"[1]", "undecodable"), (b"\xff\x00", "undecodable"), (b'{"event_type": "x"}', "invalid")],
)
def test_poison_rests_in_the_dead_letters_and_the_next_record_is_handled(
    narrow: Stream, letters: Queue, make: MakeBus, data: bytes, reason: str
) -> None:
    narrow.put([Record("k", data)])
    make(narrow).publish(Placed(1))
    bus = make(narrow, consumer="workers", dead_letter=letters)
    numbers = heard(bus)

    bus.receive_once()

    [letter] = letters.peek()
    body = base64.b64decode(letter.body) if "ContentEncoding" in letter.attributes else letter.body
    assert body == data
    assert json.loads(letter.attributes["DeadLetter"])["reason"] == reason
    assert numbers == [1]


def test_an_event_that_nobody_here_handles_is_passed_over_by_a_broadcast_and_kept_by_a_consumer(
    narrow: Stream, letters: Queue, make: MakeBus
) -> None:
    publisher, broadcast = make(narrow), make(narrow)
    consumer = make(narrow, consumer="workers", dead_letter=letters)
    numbers = heard(broadcast)
    broadcast.receive_once()
    publisher.publish_many([Shipped(1), Placed(2)])

    broadcast.receive_once()
    for _ in range(3):
        consumer.receive_once()

    assert numbers == [2]
    assert [json.loads(letter.attributes["DeadLetter"])["reason"] for letter in letters.peek()][:1] == ["unhandled"]


def test_replay_reads_again_without_moving_the_position(narrow: Stream, make: MakeBus, clock: FakeClock) -> None:
    publisher = make(narrow)
    publisher.publish(Placed(1))
    clock.advance(10)
    middle = clock.now()
    publisher.publish(Placed(2))
    bus = make(narrow, consumer="workers")
    seen: list[tuple[int, bool]] = []

    def note(event: Placed) -> None:
        context = current_context()
        seen.append((event.number, context is not None and context.replayed))

    bus.subscribe(Placed, note)
    bus.receive_once()
    [shard] = narrow.shards()
    position = narrow.position("workers", shard)

    everything = bus.replay()
    late = bus.replay(since=middle)
    none = bus.replay(since=middle + timedelta(hours=1))

    assert seen == [(1, False), (2, False), (1, True), (2, True), (2, True)]
    assert (everything.replayed, late.replayed, none.read) == (2, 1, 0)
    assert narrow.position("workers", shard) == position


def test_a_large_event_travels_by_reference(narrow: Stream, make: MakeBus, clock: FakeClock) -> None:
    @postroad.event(name="tests.kinesis:Large")
    class Large:
        text: str

    blobs = memory_blobs(clock)
    publisher, receiver = make(narrow, blobs=blobs), make(narrow, blobs=blobs, consumer="workers")
    seen: list[Any] = []
    receiver.subscribe(Large, seen.append)

    sent = publisher.publish(Large("x" * 1_500_000))
    receiver.receive_once()

    assert sent.ok
    assert seen == [Large("x" * 1_500_000)]
    assert make(narrow).publish(Large("x" * 1_500_000)).remote == "failed"


def test_a_slow_handler_keeps_its_shards(
    narrow: Stream, make: MakeBus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(narrow, consumer="workers"), make(narrow, consumer="workers")
    other, lease, going_on = heard(second), narrow.lease, threading.Event()
    tries: list[int] = []
    asked: set[str] = set()

    def watched(consumer: str, worker: str, *, seconds: float) -> Any:
        leases = lease(consumer, worker, seconds=seconds)
        asked.add(worker)
        return leases

    def slow(event: Placed) -> None:
        tries.append(event.number)
        going_on.wait(120)

    monkeypatch.setattr(narrow, "lease", watched)
    first.subscribe(Placed, slow)
    make(narrow).publish(Placed(1))
    first.start_receiver()
    eventually(lambda: tries)
    second.start_receiver()
    for _ in range(5):
        asked.clear()
        clock.advance(20)
        # The first renews its lease of 30 seconds, the second asks for what is free.
        eventually(lambda: len(asked) == 2)
    going_on.set()

    eventually(lambda: narrow.position("workers", narrow.shards()[0]) is not None)
    assert (tries, other) == ([1], [])


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"stream": "events"}, "stream"), ({"consumer": "a b"}, "consumer"), ({"dead_letter": "dead"}, "dead_letter")],
)
def test_what_cannot_make_a_bus_is_refused(narrow: Stream, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises((errors.ConfigurationError, errors.InvalidName), match=field):
        KinesisEventBus(**{"stream": narrow, **wrong})


def clock_of(bus: KinesisEventBus) -> FakeClock:
    clock = bus._clock
    assert isinstance(clock, FakeClock)
    return clock


def test_two_receivers_of_one_bus_read_each_record_once(narrow: Stream, make: MakeBus) -> None:
    together = threading.Barrier(2)

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(narrow, name)

        def read(self, *arguments: Any, **options: Any) -> Any:
            with suppress(threading.BrokenBarrierError):
                together.wait(0.2)
            return narrow.read(*arguments, **options)

    bus = make(Slow(), config=replace(QUICK, enable_deduplication=False))
    numbers = heard(bus)
    bus.receive_once()
    together.reset()
    make(narrow).publish_many([Placed(number) for number in range(5)])

    receivers = [threading.Thread(target=bus.receive_once) for _ in range(2)]
    for receiver in receivers:
        receiver.start()
    for receiver in receivers:
        receiver.join()
    bus.receive_once()

    assert numbers == [0, 1, 2, 3, 4]


def test_a_shard_that_appears_later_is_read_from_its_beginning(stream: Stream, make: MakeBus, clock: FakeClock) -> None:
    class Growing:
        def __init__(self) -> None:
            self.grown = False

        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

        def shards(self) -> list[str]:
            return stream.shards() if self.grown else stream.shards()[:1]

    growing = Growing()
    bus = make(growing)
    numbers = heard(bus)
    bus.receive_once()
    make(stream).publish_many([Placed(number) for number in range(1)])
    publisher = make(stream)
    for number in range(1, 20):
        publisher.publish(Placed(number), key=f"k{number}")
    growing.grown = True
    clock.advance(31)

    for _ in range(5):
        bus.receive_once()

    assert sorted(numbers) == list(range(20))


def test_a_receiver_whose_leases_fail_reports_it_until_one_succeeds(
    narrow: Stream, make: MakeBus, clock: FakeClock
) -> None:
    failures: list[BaseException] = []
    seen: list[str | None] = []
    flaky: Any = Failing(cast(Queue, narrow), "lease")
    bus = make(flaky, consumer="workers")
    numbers = heard(bus)
    lease = flaky.lease

    def failing_lease(*arguments: Any, **options: Any) -> Any:
        seen.append(bus.health().last_error)
        if failures:
            raise failures.pop()
        return lease(*arguments, **options)

    flaky.lease = failing_lease
    bus.start_receiver()
    failures.extend(errors.Unavailable("no answer") for _ in range(3))
    bus.publish(Placed(1))
    clock.advance(60)
    eventually(lambda: numbers == [1] and len(seen) >= 5 and bus.health().last_error is None)

    assert seen[:5] == [None, None, "no answer", "no answer", "no answer"]
