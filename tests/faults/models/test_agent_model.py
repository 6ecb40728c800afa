"""The fan-out of agents beside a model: every listener gets every producer's events once and in order."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.agents.conftest import Post, n_of
from tests.faults.models.machines import STEPS, check_finds, check_model

from postroad.agents import AgentEvent, runner as module
from postroad.queues import Delivery
from postroad.testing.clock import FakeClock
from postroad.wiring import connect

pytestmark = pytest.mark.slow

LISTENERS = ["cat", "dan"]
PRODUCERS = ["ann", "bob"]
PAIRS = st.tuples(st.sampled_from(LISTENERS), st.sampled_from(PRODUCERS))
VISIBILITY = 30.0
Lane = tuple[str, str]


@dataclass(slots=True)
class FanOutModel:
    """The rules of fan-out in plain Python; a lane is what one listener gets of one producer."""

    now: float = 0.0
    wanted: dict[Lane, str | None] = field(default_factory=dict)
    """By subscription: the type of the events, None for all."""
    paused: set[Lane] = field(default_factory=set)
    waiting: dict[Lane, list[int]] = field(default_factory=lambda: defaultdict(list))
    leased: dict[Lane, tuple[float, list[int]]] = field(default_factory=dict)
    """Until when, and which ones; a lane that is in flight is held back."""

    def publish(self, producer: str, event_type: str, number: int) -> None:
        for lane, wanted in self.wanted.items():
            if lane[1] == producer and wanted in (None, event_type):
                self.waiting[lane].append(number)

    def is_open(self, lane: Lane) -> bool:
        return lane not in self.paused and self.leased.get(lane, (0.0, []))[0] <= self.now

    def take(self, lane: Lane, numbers: list[int]) -> None:
        assert self.is_open(lane), f"{lane} is held back"
        assert self.waiting[lane][: len(numbers)] == numbers, f"{numbers} leave a gap in {self.waiting[lane]}"
        self.leased[lane] = self.now + VISIBILITY, numbers

    def settle(self, lane: Lane, number: int, *, done: bool) -> bool:
        """Ack or release; return whether the message was still held."""
        until, held = self.leased.get(lane, (0.0, []))
        if until <= self.now or number not in held:
            return False
        if done:
            self.waiting[lane].remove(number)
        held.remove(number)
        if not held:
            del self.leased[lane]
        return True


class FanOutMachine(RuleBasedStateMachine):
    """Two listeners, two producers and two runners that share the shards."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.backend = connect("memory://", clock=self.clock)
        self.post = Post(self.backend, self.clock, {"max_receives": 1_000})
        self.post.register(*LISTENERS, *PRODUCERS)
        self.runners = [self.post.runner, self.post.agents.runner(worker="other")]
        self.model = FanOutModel()
        self.numbers = itertools.count(1)
        self.held: list[tuple[Lane, Delivery]] = []
        self.newest: dict[tuple[Lane, int], Delivery] = {}

    @initialize()
    def begin(self) -> None:
        for listener in LISTENERS:
            self.subscribe((listener, "ann"), None)

    @rule(lane=PAIRS, event_type=st.sampled_from([None, None, "a"]))
    def subscribe(self, lane: Lane, event_type: str | None) -> None:
        is_new = self.post.agents.subscribe(*lane, event_types=None if event_type is None else [event_type])

        assert is_new is (lane not in self.model.wanted)
        self.model.wanted[lane] = event_type

    @rule(lane=PAIRS)
    def unsubscribe(self, lane: Lane) -> None:
        assert self.post.agents.unsubscribe(*lane) is (lane in self.model.wanted)
        self.model.wanted.pop(lane, None)
        self.model.paused.discard(lane)

    @precondition(lambda self: self.model.wanted)
    @rule(place=st.integers(0, 3), resumes=st.booleans())
    def pause_or_resume(self, place: int, resumes: bool) -> None:
        lane = sorted(self.model.wanted)[place % len(self.model.wanted)]
        if resumes:
            self.post.agents.resume(*lane)
            self.model.paused.discard(lane)
        else:
            self.post.agents.pause(*lane)
            self.model.paused.add(lane)

    @rule(
        producer=st.sampled_from(PRODUCERS),
        types=st.lists(st.sampled_from("ab"), min_size=1, max_size=4),
        turn=st.integers(0, 1),
    )
    def publish(self, producer: str, types: list[str], turn: int) -> None:
        """Publish, and let the runners move it; one of them may have lost its shards to the other."""
        numbers = [next(self.numbers) for _ in types]
        events = [AgentEvent(producer, kind, {"n": n}) for kind, n in zip(types, numbers, strict=True)]
        assert all(result.ok for result in self.post.agents.publish(events))
        self.clock.advance(2.001)
        self.model.now += 2.001
        for _ in range(3):
            for runner in (self.runners[turn], self.runners[1 - turn]):
                runner.run_once()

        for kind, number in zip(types, numbers, strict=True):
            self.model.publish(producer, kind, number)

    @rule(listener=st.sampled_from(LISTENERS), most=st.integers(1, 5))
    def receive(self, listener: str, most: int) -> None:
        open_lanes = [lane for lane in self.model.waiting if lane[0] == listener and self.model.is_open(lane)]
        waits = any(self.model.waiting[lane] for lane in open_lanes)
        taken: dict[Lane, list[int]] = defaultdict(list)
        for delivery in self.post.take(listener, most):
            lane = (listener, str(delivery.group))
            taken[lane].append(n_of(delivery))
            self.held.append((lane, delivery))
            self.newest[lane, n_of(delivery)] = delivery

        assert bool(taken) is waits
        for lane, numbers in taken.items():
            self.model.take(lane, numbers)

    @precondition(lambda self: self.held)
    @rule(back=st.one_of(st.integers(0, 2), st.integers(0, 20)), done=st.booleans())
    def settle(self, back: int, done: bool) -> None:
        lane, delivery = self.held[-1 - back % len(self.held)]
        queue = self.post.agents.queue(lane[0])

        [result] = queue.ack([delivery]) if done else queue.release([delivery])

        is_newest = self.newest[lane, n_of(delivery)] is delivery
        assert result.ok is (is_newest and self.model.settle(lane, n_of(delivery), done=done))

    @rule(seconds=st.sampled_from(STEPS[:4]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    @invariant()
    def the_subscriptions_are_those_of_the_model(self) -> None:
        for listener in LISTENERS:
            found = {each.producer_id: each.state for each in self.post.agents.subscriptions(listener).items}
            lanes = [lane for lane in self.model.wanted if lane[0] == listener]
            assert found == {lane[1]: "paused" if lane in self.model.paused else "active" for lane in lanes}

    def teardown(self) -> None:
        self.backend.close()


def test_the_fan_out_of_agents_agrees_with_its_rules() -> None:
    check_model(FanOutMachine)


def test_an_event_that_the_runner_leaves_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "merged", lambda events: list(events)[:2])

    check_finds(FanOutMachine)
