"""A Hypothesis state machine that drives several stores and compares each with a model of the rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from postroad.errors import StaleReceipt
from postroad.queues import Delivery, OutgoingMessage, QueueSpec, QueueStore, read_dead, redrive, redrives
from postroad.testing.clock import FakeClock

Place = Literal["jobs", "dead"]

DEDUP_SECONDS = 300.0


@dataclass(slots=True, kw_only=True)
class Entry:
    """A message in the model. `lease` is the number of its last lease."""

    body: str
    group: str | None
    place: Place
    sent_at: float
    visible_at: float
    receives: int = 0
    lease: int | None = None
    redrives: int = 0


@dataclass(slots=True, kw_only=True)
class QueueModel:
    """The rules of one queue and its dead-letter queue in plain Python, with a clock of their own."""

    spec: QueueSpec
    now: float = 0.0
    entries: list[Entry] = field(default_factory=list)
    """In the order of their sequence within each place."""
    expired: dict[Place, int] = field(default_factory=lambda: {"jobs": 0, "dead": 0})
    remembered: dict[str, tuple[float, str]] = field(default_factory=dict)
    leases: int = 0

    def advance(self, seconds: float) -> None:
        """Let time pass; what is too old vanishes."""
        self.now += seconds
        for entry in [each for each in self.entries if self.now - each.sent_at > self.spec.retention]:
            self.entries.remove(entry)
            self.expired[entry.place] += 1

    def send(self, body: str, group: str | None, dedup_id: str | None, delay: float) -> str:
        """Return the body of the stored message: this one, or the first one with its dedup id."""
        if dedup_id is not None:
            until, first = self.remembered.get(dedup_id, (self.now, ""))
            if until > self.now:
                return first
            self.remembered[dedup_id] = (self.now + DEDUP_SECONDS, body)
        self.entries.append(Entry(body=body, group=group, place="jobs", sent_at=self.now, visible_at=self.now + delay))
        return body

    def at(self, place: Place) -> list[Entry]:
        return [entry for entry in self.entries if entry.place == place]

    def reachable(self, place: Place) -> list[Entry]:
        """Return the messages that a receive may return or move to the dead letters now, in order."""
        if not self.spec.fifo:
            return [entry for entry in self.at(place) if entry.visible_at <= self.now]
        blocked = {entry.group for entry in self.at(place) if self.in_flight(entry)}
        found = []
        for entry in self.at(place):
            if entry.visible_at <= self.now and entry.group not in blocked:
                found.append(entry)
            else:
                blocked.add(entry.group)
        return found

    def exhausted(self, entry: Entry) -> bool:
        """Return whether the next receive moves the message to the dead letters."""
        return entry.place == "jobs" and entry.receives >= self.spec.max_receives

    def in_flight(self, entry: Entry) -> bool:
        return entry.lease is not None and entry.visible_at > self.now

    def check_received(self, place: Place, bodies: Sequence[str], max_messages: int, dead: Sequence[str]) -> None:
        """Fail if the rules do not allow this receive; `dead` went to the dead letters on the way."""
        reachable = self.reachable(place)
        alive = [entry.body for entry in reachable if not self.exhausted(entry)]
        dying = [entry.body for entry in reachable if self.exhausted(entry)]
        assert len(set(bodies)) == len(bodies), f"{bodies} holds one message twice"
        assert bool(bodies) is bool(alive), f"{bodies} of {alive}"
        assert len(bodies) <= max_messages
        assert set(bodies) <= set(alive), f"{bodies} are not all of {alive}"
        assert set(dead) <= set(dying), f"{dead} are not all of {dying}"
        if not bodies:
            assert set(dead) == set(dying), f"{dead} should be all of {dying}"
        if self.spec.fifo:
            self._check_order(reachable, bodies, dead)

    def _check_order(self, reachable: Sequence[Entry], bodies: Sequence[str], dead: Sequence[str]) -> None:
        for group in {entry.group for entry in reachable}:
            line = [entry.body for entry in reachable if entry.group == group]
            taken = [body for body in line if body in bodies or body in dead]
            assert taken == line[: len(taken)], f"{taken} leave a gap in {line}"
            received = [body for body in bodies if body in line]
            assert received == [body for body in line if body in bodies], f"{received} is not the order of {line}"

    def lease(self, body: str, seconds: float) -> int:
        """Lease the message and return the number of the lease."""
        entry = self.find(body)
        self.leases += 1
        entry.lease, entry.visible_at = self.leases, self.now + seconds
        entry.receives += 1
        return self.leases

    def holds(self, body: str, place: Place, lease: int, *, late: bool = False) -> bool:
        """Return whether the lease is the message's last one; `late` accepts it after its end too."""
        found = [entry for entry in self.at(place) if entry.body == body and entry.lease == lease]
        return any(self.in_flight(entry) or (late and not self.spec.fifo) for entry in found)

    def find(self, body: str) -> Entry:
        return next(entry for entry in self.entries if entry.body == body)

    def ack(self, body: str) -> None:
        self.entries.remove(self.find(body))

    def extend(self, body: str, seconds: float) -> None:
        self.find(body).visible_at = self.now + seconds

    def release(self, body: str, after: float, error: str) -> None:
        """End the lease; the message is visible after so many seconds."""
        entry = self.find(body)
        entry.lease, entry.visible_at = None, self.now + after

    def reject(self, body: str, reason: str = "") -> None:
        """Move the message behind the other dead letters; a standard one keeps its age."""
        entry = self._move(body, "dead")
        if self.spec.fifo:
            entry.sent_at = self.now

    def redrive(self) -> int:
        """Move the dead letters that nobody holds behind the waiting messages; return how many were moved."""
        bodies = [each.body for each in self.at("dead") if not self.in_flight(each) and each.redrives < 3]
        for body in bodies:
            entry = self._move(body, "jobs")
            entry.sent_at = self.now
            entry.redrives += 1
        return len(bodies)

    def _move(self, body: str, place: Place) -> Entry:
        entry = self.find(body)
        self.entries.remove(entry)
        self.entries.append(entry)
        entry.place, entry.receives, entry.lease, entry.visible_at = place, 0, None, self.now
        return entry


Opener = Callable[[FakeClock], AbstractContextManager[QueueStore]]

# No sum of these is a whole number of seconds, as all leases, delays and ages are: nothing ends at the very moment
# of a check, on which adapters need not agree.
STEPS = [1.001, 4.001, 11.001, 61.001, 301.001]
PLACES: list[Place] = ["jobs", "dead"]
# Which delivery to settle, from the last one back: mostly one that is still held, at times a stale one.
INDEXES = st.one_of(st.integers(0, 3), st.integers(0, 30))
HAS_DELIVERIES = precondition(lambda machine: all(store.held for store in machine.stores))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A delivery with the model's number of its lease."""

    delivery: Delivery
    place: Place
    body: str
    lease: int


class ComparedStore:
    """One store and its own model: each verb is done on both and compared."""

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
        dead = [message.body.decode() for message in after if message.message_id not in before]
        self.model.check_received(place, [each.body.decode() for each in deliveries], max_messages, dead)
        for body in dead:
            self.model.reject(body)
        self.held += [self._lease(place, delivery, visibility) for delivery in deliveries]

    def _lease(self, place: Place, delivery: Delivery, visibility: float | None) -> Held:
        body = delivery.body.decode()
        lease = self.model.lease(body, self.spec.visibility if visibility is None else visibility)
        entry = self.model.find(body)
        assert delivery.message_id == self.ids[body]
        assert delivery.receive_count == entry.receives
        assert delivery.group == entry.group
        return Held(delivery=delivery, place=place, body=body, lease=lease)

    def settle(self, index: int, verb: str, **arguments: Any) -> None:
        """Ack, extend, release or reject one of the deliveries so far."""
        held = self.held[index % len(self.held)]
        if verb == "reject" and held.place == "dead":
            return

        [result] = getattr(self.queues[held.place], verb)([held.delivery], **arguments)

        expected = self.model.holds(held.body, held.place, held.lease, late=verb == "ack")
        assert result.ok is expected, f"{held.body}: {result} where the rules say ok={expected}"
        assert result.ok or isinstance(result.error, StaleReceipt)
        if expected:
            getattr(self.model, verb)(held.body, **arguments)

    def redrive(self) -> None:
        report = redrive(self.store, self.queues["dead"].name)

        assert report.moved == self.model.redrive()

    def check(self) -> None:
        """Compare what the store shows with the model."""
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
    """Return a state machine over these stores; run its `TestCase`."""

    class QueueMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.open = ExitStack()
            self.stores: list[ComparedStore] = []
            self.numbers = itertools.count(1)

        @initialize(fifo=st.booleans())
        def begin(self, fifo: bool) -> None:
            for opener in openers:
                clock = FakeClock()
                self.stores.append(ComparedStore(self.open.enter_context(opener(clock)), clock, fifo=fifo))
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
            for store in self.stores:
                store.send(messages)

        @rule(
            place=st.sampled_from(["jobs", "jobs", "jobs", "dead"]),
            max_messages=st.integers(1, 6),
            visibility=st.sampled_from([None, None, 3, 30]),
        )
        def receive(self, place: Place, max_messages: int, visibility: float | None) -> None:
            for store in self.stores:
                store.receive(place, max_messages, visibility)

        @HAS_DELIVERIES
        @rule(index=INDEXES)
        def ack(self, index: int) -> None:
            for store in self.stores:
                store.settle(-1 - index, "ack")

        @HAS_DELIVERIES
        @rule(index=INDEXES, seconds=st.sampled_from([2, 20]))
        def extend(self, index: int, seconds: float) -> None:
            for store in self.stores:
                store.settle(-1 - index, "extend", seconds=seconds)

        @HAS_DELIVERIES
        @rule(index=INDEXES, after=st.sampled_from([0, 0, 7]))
        def release(self, index: int, after: float) -> None:
            for store in self.stores:
                store.settle(-1 - index, "release", after=after, error="ValueError: no")

        @HAS_DELIVERIES
        @rule(index=INDEXES)
        def reject(self, index: int) -> None:
            for store in self.stores:
                store.settle(-1 - index, "reject", reason="bad")

        @rule()
        def redrive(self) -> None:
            for store in self.stores:
                store.redrive()

        @rule(seconds=st.sampled_from(STEPS))
        def advance(self, seconds: float) -> None:
            for store in self.stores:
                store.advance(seconds)

        @invariant()
        def every_store_agrees_with_the_rules(self) -> None:
            for store in self.stores:
                store.check()

        def teardown(self) -> None:
            self.open.close()

    return QueueMachine
