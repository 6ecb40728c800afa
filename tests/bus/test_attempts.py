"""How often each handler is tried: limits of its own, and what they mean beside other handlers of the same event."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Placed, Shipped
from tests.waiting import eventually

import postroad
from postroad import Backend, Queue, QueueSpec
from postroad.bus import RemoteEventBus
from postroad.errors import ConfigurationError
from postroad.queues.markers import read_dead
from postroad.queues.redrive import redrive
from postroad.queues.sqlite import SQLiteQueues
from postroad.testing import FakeClock

REMOTE = replace(QUICK, local_dispatch=False, max_receives=3)


class Failing:
    """A handler that fails so many times, and counts its calls."""

    def __init__(self, name: str, times: int = 10**9) -> None:
        self.name, self.times, self.calls = name, times, 0

    def __call__(self, event: object) -> None:
        self.calls += 1
        if self.calls <= self.times:
            raise ValueError(f"{self.name} failed")


def error_of_the_dead_letter(queues: SQLiteQueues) -> str | None:
    letters = queues.queue("work-dead").peek()
    marker = read_dead(letters[0].attributes) if letters else None
    return None if marker is None or marker.error is None else marker.error.partition(" [")[0]


def receive(bus: RemoteEventBus, times: int) -> None:
    for _ in range(times):
        bus.receive_once()


def test_a_handler_is_tried_as_often_as_it_says(make_bus: MakeBus, queue: Queue, queues: SQLiteQueues) -> None:
    handler = Failing("bill")
    bus = make_bus(queue, REMOTE)
    bus.on(Placed, max_attempts=5)(handler)
    bus.publish(Placed())

    receive(bus, 4)
    before = error_of_the_dead_letter(queues)
    receive(bus, 3)

    assert (handler.calls, before) == (5, None)
    assert error_of_the_dead_letter(queues) == "ValueError: bill failed"


def test_a_handler_that_gave_up_is_not_called_again_and_the_others_still_are(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    once, often = Failing("mail"), Failing("bill", times=3)
    bus = make_bus(queue, REMOTE)
    bus.on(Placed, max_attempts=1)(once)
    bus.on(Placed, max_attempts=5)(often)
    bus.publish(Placed())

    receive(bus, 3)
    before = error_of_the_dead_letter(queues)
    receive(bus, 3)

    assert (once.calls, often.calls, before) == (1, 4, None)
    assert error_of_the_dead_letter(queues) == "ValueError: mail failed"


def test_the_log_tells_the_failure_of_each_handler(
    make_bus: MakeBus, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    bus = make_bus(queue, REMOTE)
    for name in ("one", "two", "three"):
        bus.on(Placed, name=name, max_attempts=2 if name == "three" else 1)(Failing(name))
    make_bus(queue).publish(Placed())

    receive(bus, times=2)

    lines = [record.getMessage() for record in caplog.records]
    told = [(line.split()[0], name) for line in lines for name in ("one", "two", "three") if f"handler={name}" in line]
    assert told == [
        ("bus_handler_failed", "one"),
        ("bus_handler_failed", "two"),
        ("bus_retried", "three"),
        ("bus_handler_failed", "three"),
        ("bus_dead_lettered", "one"),
    ]


def test_a_redriven_event_gives_every_handler_that_gave_up_new_attempts(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    once, fine = Failing("mail", times=1), Failing("bill", times=0)
    bus = make_bus(queue, REMOTE)
    bus.on(Placed, max_attempts=1)(once)
    bus.subscribe(Placed, fine)
    bus.publish(Placed())
    receive(bus, 1)

    redrive(queues, "work-dead")
    receive(bus, 2)

    assert (once.calls, fine.calls) == (2, 1)
    assert queue.stats().visible == queue.stats().in_flight == queues.queue("work-dead").stats().visible == 0


def test_a_process_that_does_not_know_who_gave_up_calls_again_and_loses_nothing(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues
) -> None:
    once, often = Failing("mail"), Failing("bill", times=1)

    def subscribed(bus: RemoteEventBus) -> RemoteEventBus:
        bus.on(Placed, max_attempts=1)(once)
        bus.on(Placed, max_attempts=5)(often)
        return bus

    first, second = subscribed(make_bus(queue, REMOTE)), subscribed(make_bus(queue, REMOTE))
    first.publish(Placed())
    receive(first, 1)

    receive(second, 1)

    assert (once.calls, often.calls) == (2, 2)
    assert error_of_the_dead_letter(queues) == "ValueError: mail failed"


def test_an_event_comes_again_after_the_longest_delay_of_those_who_need_it(
    make_bus: MakeBus, queue: Queue, clock: FakeClock
) -> None:
    bus = make_bus(queue, REMOTE)
    bus.on(Placed, max_attempts=1, retry_delays=[500])(Failing("gives up"))
    bus.on(Placed, retry_delays=(10, 20))(Failing("quick"))
    bus.on(Placed, retry_delays=(40,))(Failing("slow"))
    bus.publish(Placed())
    receive(bus, 1)

    clock.advance(39)
    early = queue.stats().visible
    clock.advance(2)

    assert (early, queue.stats().visible) == (0, 1)


def test_a_handler_that_waited_for_something_cancelled_has_failed_and_the_others_run(
    make_bus: MakeBus, queue: Queue
) -> None:
    called: list[str] = []
    bus = make_bus(queue, REMOTE)

    @bus.on(Placed, name="first")
    async def first(event: Placed) -> None:
        called.append("first")

    @bus.on(Placed, name="cancelled", max_attempts=2)
    async def cancelled(event: Placed) -> None:
        called.append("cancelled")
        waiting = asyncio.create_task(asyncio.sleep(60))
        waiting.cancel()
        await waiting

    @bus.on(Placed, name="last")
    async def last(event: Placed) -> None:
        called.append("last")

    make_bus(queue).publish(Placed())
    bus.start_receiver()

    eventually(lambda: bus.health().dead_lettered == 1)
    assert called == ["first", "cancelled", "last", "cancelled"]


def test_without_dead_letters_a_handler_is_tried_until_it_succeeds(make_bus: MakeBus, queue: Queue) -> None:
    handler = Failing("bill", times=4)
    bus = make_bus(queue, REMOTE, dead_letters=False)
    bus.on(Placed, max_attempts=2)(handler)
    bus.publish(Placed())

    receive(bus, 6)

    assert handler.calls == 5
    assert queue.stats().visible == queue.stats().in_flight == 0


@pytest.mark.parametrize(("group", "fifo"), [("billing", False), ("billing", True), (None, False)])
def test_the_queue_of_a_bus_delivers_as_often_as_a_handler_may_try(
    backend: Backend, group: str | None, fifo: bool
) -> None:
    handler = Failing("bill")
    bus = backend.bus("orders", group, fifo=fifo, config=REMOTE, local=False)
    bus.on(Placed, max_attempts=5)(handler)
    bus.start_receiver()

    backend.bus("orders", fifo=fifo, config=REMOTE).publish(Placed(), key="k")

    eventually(lambda: bus.health().dead_lettered == 1)
    assert handler.calls == 5
    bus.close()
    if group is not None:
        backend.bus("orders", group, fifo=fifo, config=REMOTE)
        assert backend.queue_spec("orders--billing.fifo" if fifo else "orders--billing").max_receives == (
            25 if fifo else 5
        )


def test_a_running_bus_raises_the_limit_of_its_queue_too(backend: Backend) -> None:
    bus = backend.bus("orders", "billing", config=REMOTE)
    bus.start_receiver()

    bus.on(Placed, max_attempts=7)(Failing("bill"))

    assert backend.queue_spec("orders--billing").max_receives == 7


def test_a_queue_that_allows_fewer_receives_is_refused_by_name(make_bus: MakeBus, queues: SQLiteQueues) -> None:
    queues.create_queue(QueueSpec("few-dead"))
    bus = make_bus(queues.create_queue(QueueSpec("few", dead_letter="few-dead", max_receives=4)), REMOTE)
    bus.on(Placed, max_attempts=5)(Failing("bill"))

    with pytest.raises(
        ConfigurationError, match="max_attempts: 5 is more than max_receives of queue 'few', which is 4"
    ) as caught:
        bus.receive_once()

    assert caught.value.field == "max_attempts"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", 1.5),
        ("max_attempts", True),
        ("max_attempts", 1_001),
        ("retry_delays", ()),
        ("retry_delays", (-1,)),
        ("retry_delays", "1, 5"),
        ("retry_delays", (50_000,)),
    ],
)
def test_limits_out_of_bounds_are_refused_by_name_and_nothing_is_subscribed(
    make_bus: MakeBus, queue: Queue, field: str, value: object
) -> None:
    bus = make_bus(queue, REMOTE)

    with pytest.raises(ConfigurationError, match=field) as caught:
        bus.on(Placed, **{field: value})  # type: ignore[call-overload]  # wrong on purpose

    assert caught.value.field == field


def test_the_queue_of_a_group_is_made_for_the_most_attempts_of_its_handlers(backend: Backend) -> None:
    declared = postroad.Bus("orders", group="billing", config=REMOTE)
    declared.on(Placed, max_attempts=7)(lambda event: None)
    declared.on(Shipped, max_attempts=4)(lambda event: None)

    declared.bind(backend)

    assert backend.queue_spec("orders--billing").max_receives == 7


def test_a_queue_of_a_group_that_others_made_with_fewer_receives_is_refused_at_the_start(backend: Backend) -> None:
    backend.bus("orders", "billing", config=REMOTE)
    bus = backend.bus("orders", "billing", config=REMOTE)
    bus.on(Placed, max_attempts=5)(lambda event: None)

    with pytest.raises(ConfigurationError, match=r"max_attempts: 5 .* max_receives .* which is 3") as caught:
        bus.start_receiver()

    assert caught.value.field == "max_attempts"
    assert "postroad bus group set orders billing --max-receives 5" in caught.value.remedy
    assert backend.queue_spec("orders--billing").max_receives == 3
    assert not bus.health().running


def test_a_refused_queue_that_was_given_more_receives_is_accepted(backend: Backend) -> None:
    backend.bus("orders", "billing", config=REMOTE)
    bus = backend.bus("orders", "billing", config=REMOTE)
    bus.on(Placed, max_attempts=5)(lambda event: None)

    backend.update_queue(replace(backend.queue_spec("orders--billing"), max_receives=5))
    bus.start_receiver()

    assert bus.health().running


def test_a_queue_with_fewer_receives_is_refused_before_anything_is_received(
    make_bus: MakeBus, queues: SQLiteQueues
) -> None:
    queues.create_queue(QueueSpec("few-dead"))
    few = queues.create_queue(QueueSpec("few", dead_letter="few-dead", max_receives=2))
    bus = make_bus(few, REMOTE)
    bus.on(Placed, max_attempts=5)(lambda event: None)
    bus.publish(Placed())

    with pytest.raises(ConfigurationError, match="max_attempts: 5"):
        bus.receive_once()

    assert few.stats().visible == 1
