"""A Hypothesis state machine that drives several stores side by side, each beside a model of the rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from postroad.errors import StaleReceipt
from postroad.queues import AckResult, Delivery, OutgoingMessage, QueueSpec, QueueStore, read_dead, redrive, redrives
from postroad.testing.clock import FakeClock
from postroad.testing.queue_model import Place, QueueModel

Opener = Callable[[FakeClock], AbstractContextManager[QueueStore]]

# No sum of these is a whole number of seconds, as all leases, delays and ages are: nothing ends at the very moment
# in which it is looked at, which adapters need not agree upon.
STEPS = [1.001, 4.001, 11.001, 61.001, 301.001]
PLACES: list[Place] = ["jobs", "dead"]
# Which delivery to settle, from the last one back: mostly one that is still held, at times one that is long stale.
INDEXES = st.one_of(st.integers(0, 3), st.integers(0, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A delivery with the model's number of its lease."""

    delivery: Delivery
    place: Place
    body: str
    lease: int


class Lane:
    """One store beside its own model: each verb is done on both and compared."""

    def __init__(self, store: QueueStore, clock: FakeClock, *, fifo: bool) -> None:
        end = ".fifo" if fifo else ""
        self.spec = QueueSpec(
            f"jobs{end}", fifo=fifo, visibility=10, retention=120, dead_letter=f"dead{end}", max_receives=2
        )
        self.model = QueueModel(spec=self.spec)
        self.store = store
        self.clock = clock
        self.started = clock.now()
        self.queues = {"dead": store.create_queue(QueueSpec(f"dead{end}", fifo=fifo, visibility=10, retention=120))}
        self.queues["jobs"] = store.create_queue(self.spec)
        self.held: list[Held] = []
        self.ids: dict[str, str] = {}
        self.last_sequence = 0

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.advance(seconds)

    def send(self, messages: Sequence[OutgoingMessage]) -> None:
        results = self.queues["jobs"].send(messages)

        for message, result in zip(messages, results, strict=True):
            assert isinstance(message.body, str)
            assert result.message_id is not None
            first = self.model.send(message.body, message.group, message.dedup_id, message.delay)
            assert self.ids.setdefault(first, result.message_id) == result.message_id
            if first == message.body:
                assert result.sequence is not None
                assert result.sequence > self.last_sequence
                self.last_sequence = result.sequence

    def receive(self, place: Place, max_messages: int, visibility: float | None) -> None:
        before = {message.message_id for message in self.queues["dead"].peek(limit=1_000)}

        deliveries = self.queues[place].receive(max_messages=max_messages, visibility=visibility)

        after = self.queues["dead"].peek(limit=1_000)
        buried = [message.body.decode() for message in after if message.message_id not in before]
        self.model.check_received(place, [each.body.decode() for each in deliveries], max_messages, buried)
        for body in buried:
            self.model.bury(body)
        self.held += [self._lease(place, delivery, visibility) for delivery in deliveries]

    def _lease(self, place: Place, delivery: Delivery, visibility: float | None) -> Held:
        body = delivery.body.decode()
        lease = self.model.lease(body, self.spec.visibility if visibility is None else visibility)
        entry = self.model.find(body)
        assert delivery.message_id == self.ids[body]
        assert delivery.receive_count == entry.receives
        assert delivery.group == entry.group
        return Held(delivery=delivery, place=place, body=body, lease=lease)

    def ack(self, index: int) -> None:
        held = self.held[index % len(self.held)]

        [result] = self.queues[held.place].ack([held.delivery])

        if self._agrees(result, held, late=True):
            self.model.ack(held.body)

    def extend(self, index: int, seconds: float) -> None:
        held = self.held[index % len(self.held)]

        [result] = self.queues[held.place].extend([held.delivery], seconds=seconds)

        if self._agrees(result, held):
            self.model.find(held.body).visible_at = self.model.now + seconds

    def release(self, index: int, after: float) -> None:
        held = self.held[index % len(self.held)]

        [result] = self.queues[held.place].release([held.delivery], after=after, error="ValueError: no")

        if self._agrees(result, held):
            self.model.release(held.body, after)

    def reject(self, index: int) -> None:
        held = self.held[index % len(self.held)]
        if held.place == "dead":
            return

        [result] = self.queues["jobs"].reject([held.delivery], reason="bad")

        if self._agrees(result, held):
            self.model.bury(held.body)

    def _agrees(self, result: AckResult, held: Held, *, late: bool = False) -> bool:
        expected = self.model.holds(held.body, held.place, held.lease, late=late)
        assert result.ok is expected, f"{held.body}: {result} where the rules say ok={expected}"
        assert result.ok or isinstance(result.error, StaleReceipt)
        return expected

    def redrive(self) -> None:
        report = redrive(self.store, self.queues["dead"].name)

        moved = self.model.redrive()
        assert report.moved == len(moved)

    def check(self) -> None:
        """What is seen from outside is what the rules say."""
        for place in PLACES:
            peeked = self.queues[place].peek(limit=1_000)
            seen = [(each.body.decode(), each.receive_count, each.state, redrives(each.attributes)) for each in peeked]
            entries = self.model.at(place)
            assert seen == [(each.body, each.receives, self._state(each.body), each.redrives) for each in entries]
            for each, entry in zip(peeked, entries, strict=True):
                assert (read_dead(each.attributes) is not None) is (place == "dead")
                assert abs((each.sent_at - self.started).total_seconds() - entry.sent_at) < 0.01
            self._check_stats(place)

    def _state(self, body: str) -> str:
        entry = self.model.find(body)
        if entry.visible_at <= self.model.now:
            return "visible"
        return "in_flight" if self.model.in_flight(entry) else "delayed"

    def _check_stats(self, place: Place) -> None:
        stats = self.queues[place].stats()
        entries = self.model.at(place)
        states = [self._state(entry.body) for entry in entries]
        assert stats.visible == states.count("visible")
        assert stats.in_flight == states.count("in_flight")
        assert stats.delayed == states.count("delayed")
        assert stats.expired == self.model.expired[place]
        if entries:
            oldest = self.model.now - min(entry.sent_at for entry in entries)
            assert stats.oldest_age_seconds is not None
            assert stats.oldest_age_seconds < oldest + 0.01
            # Standard dead letters keep their age, so that the oldest need not stand first.
            assert stats.oldest_age_seconds > oldest - 0.01 or (place == "dead" and not self.spec.fifo)


def queue_machine(*openers: Opener) -> type[RuleBasedStateMachine]:
    """A state machine over these stores; run its `TestCase`."""

    class QueueMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.open = ExitStack()
            self.lanes: list[Lane] = []
            self.numbers = itertools.count(1)

        @initialize(fifo=st.booleans())
        def begin(self, fifo: bool) -> None:
            for opener in openers:
                clock = FakeClock()
                self.lanes.append(Lane(self.open.enter_context(opener(clock)), clock, fifo=fifo))
            self.fifo = fifo

        @rule(
            groups=st.lists(st.sampled_from("ab"), min_size=1, max_size=4),
            dedup=st.one_of(st.none(), st.sampled_from("xyz")),
            delay=st.sampled_from([0, 0, 0, 5]),
        )
        def send(self, groups: list[str], dedup: str | None, delay: float) -> None:
            bodies = [str(next(self.numbers)) for _ in groups]
            if self.fifo:
                messages = [
                    OutgoingMessage(body=body, group=group, dedup_id=dedup or f"own-{body}")
                    for body, group in zip(bodies, groups, strict=True)
                ]
            else:
                messages = [OutgoingMessage(body=body, delay=delay) for body in bodies]
            for lane in self.lanes:
                lane.send(messages)

        @rule(
            place=st.sampled_from(["jobs", "jobs", "jobs", "dead"]),
            max_messages=st.integers(1, 6),
            visibility=st.sampled_from([None, None, 3, 30]),
        )
        def receive(self, place: Place, max_messages: int, visibility: float | None) -> None:
            for lane in self.lanes:
                lane.receive(place, max_messages, visibility)

        @precondition(lambda self: all(lane.held for lane in self.lanes))
        @rule(index=INDEXES)
        def ack(self, index: int) -> None:
            for lane in self.lanes:
                lane.ack(-1 - index)

        @precondition(lambda self: all(lane.held for lane in self.lanes))
        @rule(index=INDEXES, seconds=st.sampled_from([2, 20]))
        def extend(self, index: int, seconds: float) -> None:
            for lane in self.lanes:
                lane.extend(-1 - index, seconds)

        @precondition(lambda self: all(lane.held for lane in self.lanes))
        @rule(index=INDEXES, after=st.sampled_from([0, 0, 7]))
        def release(self, index: int, after: float) -> None:
            for lane in self.lanes:
                lane.release(-1 - index, after)

        @precondition(lambda self: all(lane.held for lane in self.lanes))
        @rule(index=INDEXES)
        def reject(self, index: int) -> None:
            for lane in self.lanes:
                lane.reject(-1 - index)

        @rule()
        def redrive(self) -> None:
            for lane in self.lanes:
                lane.redrive()

        @rule(seconds=st.sampled_from(STEPS))
        def advance(self, seconds: float) -> None:
            for lane in self.lanes:
                lane.advance(seconds)

        @invariant()
        def every_store_agrees_with_the_rules(self) -> None:
            for lane in self.lanes:
                lane.check()

        def teardown(self) -> None:
            self.open.close()

    return QueueMachine
