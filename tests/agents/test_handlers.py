"""`agents.agent(id)`: handlers of an agent's events on the one receiver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import NEVER_SECONDS, eventually

from postroad import NonRetryable, Retryable, connect
from postroad.agents import AgentEvent, AgentHandle, Agents, ReceivedEvent
from postroad.errors import AgentNotFound, ConfigurationError, InvalidEvent, InvalidInput
from postroad.queues import read_dead


@pytest.fixture(params=["sqlite", "memory"])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agents]:
    url = f"sqlite:///{tmp_path}/postroad.db" if request.param == "sqlite" else "memory://"
    with connect(url) as backend:
        agents = backend.agents(max_receives=3)
        for name in ("ann", "bob", "cat"):
            agents.register(name)
        agents.subscribe_many([("bob", "ann"), ("bob", "cat")])
        yield agents


@pytest.fixture
def bob(agents: Agents) -> AgentHandle:
    return agents.agent("bob")


@contextmanager
def running(agent: AgentHandle, **options: Any) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,), kwargs=options)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(120)
        assert not thread.is_alive()


def publish(agents: Agents, producer: str, *types: str) -> None:
    assert all(each.ok for each in agents.publish([AgentEvent(producer, kind, {"n": 1}) for kind in types]))


def is_empty(agents: Agents) -> bool:
    stats = agents.stats("bob")
    return stats.visible == stats.in_flight == stats.delayed == 0


def test_each_handler_gets_what_it_asked_for_in_order(agents: Agents, bob: AgentHandle) -> None:
    everything: list[tuple[str, str]] = []
    orders: list[ReceivedEvent] = []
    bob.on()(lambda event: everything.append((event.agent_id, event.event_type)))
    bob.on(producer="ann", event_type="order.*")(orders.append)

    with running(bob):
        publish(agents, "ann", "order.placed", "paid", "order.sent")
        publish(agents, "cat", "order.placed")
        eventually(lambda: len(everything) == 4)
        eventually(lambda: is_empty(agents))

    assert [kind for producer, kind in everything if producer == "ann"] == ["order.placed", "paid", "order.sent"]
    assert [event.event_type for event in orders] == ["order.placed", "order.sent"]
    assert (orders[0].agent_id, orders[0].subscriber_id, orders[0].data, orders[0].receive_count) == (
        "ann",
        "bob",
        {"n": 1},
        1,
    )


def test_async_handlers_run_on_the_callers_loop_beside_plain_ones(agents: Agents, bob: AgentHandle) -> None:
    seen: list[object] = []

    @bob.on(event_type="a")
    async def on_loop(event: ReceivedEvent) -> None:
        seen.append(asyncio.get_running_loop())
        await bob.apublish("answer", {})

    @bob.on(event_type="a")
    def on_thread(event: ReceivedEvent) -> None:
        seen.append(threading.current_thread())

    async def main() -> list[object]:
        stop = asyncio.Event()
        run = asyncio.create_task(bob.arun(stop))
        await asyncio.to_thread(publish, agents, "ann", "a")
        await asyncio.to_thread(eventually, lambda: len(seen) == 2)
        stop.set()
        await run
        return [asyncio.get_running_loop(), threading.current_thread()]

    loop, thread = asyncio.run(main())

    assert seen[0] is loop
    assert seen[1] is not thread


def test_a_cancelled_run_lets_a_running_handler_end_and_a_later_run_goes_on(agents: Agents, bob: AgentHandle) -> None:
    counts: list[int] = []
    may_end = threading.Event()

    @bob.on()
    async def handle(event: ReceivedEvent) -> None:
        counts.append(event.receive_count)
        while not may_end.is_set():
            await asyncio.sleep(0.01)

    async def cancelled() -> None:
        run = asyncio.create_task(bob.arun())
        await asyncio.to_thread(publish, agents, "ann", "a", "b")
        await asyncio.to_thread(eventually, lambda: counts)
        run.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancelled())
    held = agents.stats("bob").in_flight
    left = [thread.name for thread in threading.enumerate() if thread.name == "agents-runner"]
    with running(bob):
        eventually(lambda: is_empty(agents))

    assert (held, left) == (0, [])
    assert counts == [1, 1]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_run_that_is_stopped_before_it_begins_ends_at_once(bob: AgentHandle, is_async: bool) -> None:
    bob.on()(lambda event: None)
    if is_async:
        over = asyncio.Event()
        over.set()
        asyncio.run(asyncio.wait_for(bob.arun(over), NEVER_SECONDS))
    else:
        stop = threading.Event()
        stop.set()
        bob.run(stop)


def test_an_event_of_threads_does_not_stop_a_run_on_a_loop(bob: AgentHandle) -> None:
    bob.on()(lambda event: None)
    over: Any = threading.Event()
    over.set()

    with pytest.raises(InvalidInput, match=r"stop: Event is not an asyncio\.Event"):
        asyncio.run(asyncio.wait_for(bob.arun(over), NEVER_SECONDS))


@pytest.mark.parametrize("is_async", [True, False])
def test_a_run_ends_with_an_error_when_its_agent_is_deleted(agents: Agents, bob: AgentHandle, is_async: bool) -> None:
    bob.on()(lambda event: agents.delete("bob"))
    publish(agents, "ann", "order.placed")

    with pytest.raises(AgentNotFound, match="'bob' does not exist"):
        if is_async:
            asyncio.run(asyncio.wait_for(bob.arun(), NEVER_SECONDS))
        else:
            bob.run()


def test_two_programs_of_one_agent_share_its_events(agents: Agents, bob: AgentHandle) -> None:
    second, seen = agents.agent("bob"), list[str]()
    bob.on()(lambda event: seen.append(event.event_id))
    second.on()(lambda event: seen.append(event.event_id))

    with running(bob), running(second):
        for producer in ("ann", "cat"):
            publish(agents, producer, *["a"] * 30)
        eventually(lambda: len(seen) == 60 and is_empty(agents))

    assert len(set(seen)) == 60


def test_async_handlers_run_without_a_loop_of_the_caller(agents: Agents, bob: AgentHandle) -> None:
    seen: list[str] = []

    @bob.on()
    async def handle(event: ReceivedEvent) -> None:
        await asyncio.sleep(0)
        seen.append(event.event_type)

    with running(bob, concurrency=4):
        publish(agents, "ann", "a", "b")
        eventually(lambda: seen == ["a", "b"])


def test_an_object_that_cannot_be_hashed_is_a_handler_and_one_function_is_called_once(
    agents: Agents, bob: AgentHandle
) -> None:
    @dataclass
    class Counter:
        seen: list[str]

        def __call__(self, event: ReceivedEvent) -> None:
            self.seen.append(event.event_type)

    counter, twice = Counter([]), list[str]()
    bob.on()(counter)

    @bob.on(producer="ann")
    @bob.on(event_type="a")
    def record(event: ReceivedEvent) -> None:
        twice.append(event.event_type)

    with running(bob):
        publish(agents, "ann", "a")
        eventually(lambda: is_empty(agents) and twice)

    assert (counter.seen, twice) == (["a"], ["a"])


def test_a_plain_function_may_return_a_coroutine(agents: Agents, bob: AgentHandle) -> None:
    seen: list[str] = []

    async def handle(event: ReceivedEvent) -> None:
        await asyncio.sleep(0)
        seen.append(event.event_type)

    bob.on()(lambda event: handle(event))

    with running(bob):
        publish(agents, "ann", "a")
        eventually(lambda: seen == ["a"] and is_empty(agents))


def test_a_failed_event_is_retried_before_later_ones_and_by_the_failed_handler_only(
    agents: Agents, bob: AgentHandle
) -> None:
    good: list[str] = []
    bad: list[str] = []
    bob.on()(lambda event: good.append(event.event_type))

    @bob.on()
    def fail_once(event: ReceivedEvent) -> None:
        bad.append(event.event_type)
        if len(bad) == 1:
            raise Retry(after=0.01)

    class Retry(Retryable):
        def __init__(self, after: float) -> None:
            super().__init__("later")
            self.after = after

    with running(bob):
        publish(agents, "ann", "a", "b")
        eventually(lambda: is_empty(agents) and len(bad) == 3)

    assert (good, bad) == (["a", "b"], ["a", "a", "b"])


def test_an_event_that_no_retry_helps_is_a_dead_letter_at_once_and_the_next_goes_on(
    agents: Agents, bob: AgentHandle
) -> None:
    seen: list[str] = []

    @bob.on()
    def refuse(event: ReceivedEvent) -> None:
        seen.append(event.event_type)
        if event.event_type == "bad" and len(seen) == 1:
            raise NonRetryable("never")

    with running(bob):
        publish(agents, "ann", "bad", "good")
        eventually(lambda: seen == ["bad", "good"])
        eventually(lambda: agents.stats("bob").dead == 1)
        [letter] = agents.dead_letters("bob")
        agents.redrive("bob")
        eventually(lambda: seen == ["bad", "good", "bad"] and is_empty(agents))

    dead = read_dead(letter.attributes)
    assert dead is not None
    assert (dead.reason, "never" in str(dead.error)) == ("not_retryable", True)


def test_an_error_that_comes_from_non_retryable_is_given_up_and_the_other_handler_is_tried_again(
    agents: Agents, bob: AgentHandle
) -> None:
    given_up, tried = list[int](), list[int]()

    @bob.on()
    def give_up(event: ReceivedEvent) -> None:
        given_up.append(event.receive_count)
        raise RuntimeError("no") from NonRetryable("never")

    @bob.on()
    def fail_once(event: ReceivedEvent) -> None:
        tried.append(event.receive_count)
        if len(tried) == 1:
            raise Retryable("later", after=0)

    with running(bob):
        publish(agents, "ann", "a")
        eventually(lambda: agents.stats("bob").dead == 1)

    assert (given_up, tried) == ([1], [1, 2])


def test_an_event_that_always_fails_takes_none_of_those_behind_it_along(agents: Agents, bob: AgentHandle) -> None:
    seen: list[str] = []

    class Soon(Retryable):
        def __init__(self) -> None:
            super().__init__("never")
            self.after = 0.01

    @bob.on()
    def fail(event: ReceivedEvent) -> None:
        if event.event_type == "bad":
            raise Soon
        seen.append(event.event_type)

    publish(agents, "ann", "bad", "b", "c")
    with running(bob):
        eventually(lambda: seen == ["b", "c"] and is_empty(agents))

    assert agents.stats("bob").dead == 1


def test_the_log_says_which_handler_failed_and_when_the_event_comes_again(
    agents: Agents, bob: AgentHandle, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    @bob.on()
    def ship(event: ReceivedEvent) -> None:
        calls.append(event.receive_count)
        if event.receive_count == 1:
            raise Retryable("no lorry", after=0)
        raise NonRetryable("no such street")

    publish(agents, "ann", "order.placed")
    with caplog.at_level("WARNING", logger="postroad.receiving"), running(bob):
        eventually(lambda: len(agents.dead_letters("bob")) == 1)

    lines = {record.msg["event"]: record.msg for record in caplog.records if isinstance(record.msg, dict)}
    retried, rejected = lines["receiver_retried"], lines["receiver_rejected"]
    assert calls == [1, 2]
    assert [line["handler"].rpartition(".")[2] for line in (retried, rejected)] == ["ship", "ship"]
    assert (retried["attempt"], retried["retry_in_seconds"]) == (1, 0)
    assert retried["error"] == "Retryable: no lorry [test_handlers.py:ship]"
    assert rejected["error"] == "NonRetryable: no such street [test_handlers.py:ship]"


def test_an_event_that_no_handler_takes_is_acked(agents: Agents, bob: AgentHandle) -> None:
    bob.on(event_type="paid")(lambda event: None)

    with running(bob):
        publish(agents, "ann", "sent")
        eventually(lambda: agents.runner().run_once().read == 0 and is_empty(agents))

    assert agents.dead_letters("bob") == []


def test_a_replayed_event_is_handled_again(agents: Agents, bob: AgentHandle) -> None:
    seen: list[bool] = []
    bob.on()(lambda event: seen.append(event.replay))

    with running(bob):
        publish(agents, "ann", "a")
        eventually(lambda: seen == [False] and is_empty(agents))
        agents.replay("bob", "ann")
        eventually(lambda: seen == [False, True])


def test_an_agent_publishes_and_subscribes_under_its_own_id(agents: Agents, bob: AgentHandle) -> None:
    ann = agents.agent("ann")

    published = ann.publish("a", {"n": 1}, event_id="e-1")
    bob.grant("ann")
    new = ann.subscribe("bob", event_types=["a"])
    ended = bob.unsubscribe("ann")

    assert (published.ok, published.event_id, new, ended) == (True, "e-1", True, True)
    assert agents.subscriptions("ann").items[0].event_types == ("a",)
    agents.check_consent("ann", "bob")
    with pytest.raises(InvalidEvent):
        ann.publish("", {})


def test_a_handler_may_publish_what_another_agent_then_handles(agents: Agents, bob: AgentHandle) -> None:
    agents.subscribe("ann", "bob")
    ann, answers = agents.agent("ann"), []
    bob.on(event_type="question")(lambda event: bob.publish("answer", {"to": event.event_id}))
    ann.on(producer="bob")(lambda event: answers.append(event.data["to"]))

    with running(bob), running(ann):
        asked = ann.publish("question", {})
        eventually(lambda: answers == [asked.event_id])


def two(a: object, b: object) -> None: ...


def generator(event: object) -> Iterator[object]:
    yield event


async def async_generator(event: object) -> AsyncIterator[object]:
    yield event


@pytest.mark.parametrize(
    ("register", "field"),
    [
        (lambda bob: bob.on(producer="a b"), "producer"),
        (lambda bob: bob.on(event_type="order*"), "event_type"),
        (lambda bob: bob.on(event_type=""), "event_type"),
        (lambda bob: bob.on()(two), "handler"),
        (lambda bob: bob.on()(7), "handler"),
        (lambda bob: bob.on()(generator), "handler"),
        (lambda bob: bob.on()(async_generator), "handler"),
        (lambda bob: bob.on(two), "producer"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_by_name(
    bob: AgentHandle, register: Callable[[AgentHandle], object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        register(bob)

    assert refused.value.field == field
    with pytest.raises(ConfigurationError, match="handlers"):
        bob.run()


def test_an_agent_that_nobody_registered_is_not_found(agents: Agents) -> None:
    with pytest.raises(AgentNotFound):
        agents.agent("nobody")
