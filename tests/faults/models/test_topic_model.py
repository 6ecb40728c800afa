"""The topic beside a model: each subscribed queue gets its own copy of what its filter lets through."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.faults.models.machines import STEPS, check_finds, check_model
from tests.memory import memory_queues, memory_topics

from postroad.queues import OutgoingMessage, QueueSpec
from postroad.testing.clock import FakeClock
from postroad.topics import port

pytestmark = pytest.mark.slow

DEDUP_SECONDS = 300.0
COLOURS = ["red", "green", "blue"]
FILTERS = [None, ("red",), ("green", "blue")]
NAMES = st.sampled_from("abc")


@dataclass(slots=True)
class TopicModel:
    """The rules of one topic in plain Python."""

    now: float = 0.0
    filters: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    """By subscribed queue."""
    queues: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in "abc"})
    """The bodies in each queue, in order."""
    remembered: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By dedup id: until when, and the body of the first message."""

    def publish(self, body: str, colour: str, dedup_id: str | None) -> tuple[str, int | None]:
        """Return the body of the message that counts, and how many queues got it; None for a repeat."""
        if dedup_id is not None:
            until, first = self.remembered.get(dedup_id, (self.now, ""))
            if until > self.now:
                return first, None
            self.remembered[dedup_id] = (self.now + DEDUP_SECONDS, body)
        wanted = [name for name, colours in self.filters.items() if colours is None or colour in colours]
        for name in wanted:
            self.queues[name].append(body)
        return body, len(wanted)


class TopicMachine(RuleBasedStateMachine):
    """Queues a, b and c around one topic; c is a standard queue, also where the topic is FIFO."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TopicModel()
        self.clock = FakeClock()
        self.store = memory_queues(self.clock)
        self.numbers = itertools.count(1)
        self.ids: dict[str, str] = {}

    @initialize(fifo=st.booleans())
    def begin(self, fifo: bool) -> None:
        self.fifo = fifo
        self.topic = memory_topics(self.store).topic("news.fifo" if fifo else "news", fifo=fifo)
        self.queues = {name: self.store.create_queue(self.spec(name)) for name in "abc"}

    def spec(self, name: str) -> QueueSpec:
        fifo = self.fifo and name != "c"
        return QueueSpec(f"{name}.fifo" if fifo else name, fifo=fifo)

    @rule(name=NAMES, colours=st.sampled_from(FILTERS), keep=st.booleans())
    def subscribe(self, name: str, colours: tuple[str, ...] | None, keep: bool) -> None:
        given = None if colours is None else {"colour": colours}
        self.topic.subscribe(self.queues[name], filter=given, keep_filter=keep)

        if not (keep and name in self.model.filters):
            self.model.filters[name] = colours

    @rule(name=NAMES)
    def unsubscribe(self, name: str) -> None:
        was_subscribed = self.topic.unsubscribe(self.queues[name])

        assert was_subscribed is (name in self.model.filters)
        self.model.filters.pop(name, None)

    @rule(colours=st.lists(st.sampled_from(COLOURS), min_size=1, max_size=3), dedup=st.sampled_from([None, "x", "y"]))
    def publish(self, colours: list[str], dedup: str | None) -> None:
        bodies = [str(next(self.numbers)) for _ in colours]
        ids = [(dedup or f"own-{body}") if self.fifo else None for body in bodies]
        group = "g" if self.fifo else None
        results = self.topic.publish(
            [
                OutgoingMessage(body=body, attributes={"colour": colour}, group=group, dedup_id=dedup_id)
                for body, colour, dedup_id in zip(bodies, colours, ids, strict=True)
            ]
        )

        for body, colour, dedup_id, result in zip(bodies, colours, ids, results, strict=True):
            first, receivers = self.model.publish(body, colour, dedup_id)
            assert result.message_id is not None
            assert self.ids.setdefault(first, result.message_id) == result.message_id
            assert result.receivers == receivers

    @rule(name=NAMES)
    def empty(self, name: str) -> None:
        queue = self.queues[name]
        deliveries = queue.receive(max_messages=10)

        assert all(result.ok for result in queue.ack(deliveries))
        taken = [each.body.decode() for each in deliveries]
        assert taken == self.model.queues[name][: len(taken)]
        assert bool(taken) is bool(self.model.queues[name])
        del self.model.queues[name][: len(taken)]

    @rule(name=NAMES)
    def make_the_queue_anew(self, name: str) -> None:
        self.store.delete_queue(self.queues[name].name)
        self.queues[name] = self.store.create_queue(self.spec(name))

        self.model.filters.pop(name, None)
        self.model.queues[name].clear()

    @rule(seconds=st.sampled_from(STEPS))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    @invariant()
    def every_queue_holds_its_copies(self) -> None:
        for name, bodies in self.model.queues.items():
            assert [each.body.decode() for each in self.queues[name].peek(limit=1_000)] == bodies

    @invariant()
    def the_subscriptions_are_those_of_the_model(self) -> None:
        found = {each.queue.removesuffix(".fifo"): each.filter for each in self.topic.subscriptions()}
        expected = self.model.filters.items()
        assert found == {name: None if colours is None else {"colour": colours} for name, colours in expected}


def test_the_topic_agrees_with_its_rules() -> None:
    check_model(TopicMachine)


def test_a_filter_that_lets_everything_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "lets_through", lambda filter, attributes: True)

    check_finds(TopicMachine)
