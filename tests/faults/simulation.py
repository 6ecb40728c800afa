"""A small system that keeps every promise while its processes are killed and paused; it writes a history as it runs."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

VISIBILITY = 30.0
MAX_RECEIVES = 3
SUBS = ("mail", "stock")
Step = Iterator[None]


class Killed(Exception):
    """The process is gone, in the middle of what it did."""


@dataclass
class Stored:
    """A message in one subscription."""

    fields: dict[str, Any]
    sequence: int
    publisher: str
    visible_at: float = 0.0
    count: int = 0
    receipt: str | None = None


@dataclass
class System:
    """The system and the processes that use it, all driven by one seed.

    Args:
        seed: Fixes everything that happens.
        messages: How many messages the producers send in all.
        faults: Whether processes are killed and paused.
        ordered: Whether a message of a key waits until the one before it is settled.
    """

    seed: int
    messages: int = 60
    faults: bool = True
    ordered: bool = True
    now: float = 100.0
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.stored: dict[str, list[Stored]] = {sub: [] for sub in SUBS}
        self.dead: list[tuple[str, Any]] = []
        self.effects: set[tuple[str, Any]] = set()
        self.starts: Counter[str] = Counter()
        self.sent = 0
        self.breaking = self.faults

    @property
    def run(self) -> dict[str, Any]:
        """The facts of the run."""
        kills = sum(line["op"] == "kill" for line in self.lines["supervisor"])
        facts = {"format": 1, "seed": self.seed, "faults": self.faults, "ordered": self.ordered, "policy": "block"}
        facts |= {"max_receives": MAX_RECEIVES, "visibility": VISIBILITY, "subscriptions": {"orders": list(SUBS)}}
        return facts | {"drained": True, "asked_kills": kills}

    def play(self) -> System:
        """Run until all messages are sent and settled, and read back what is left."""
        actors = {name: self._life(name) for name in ("producer-a", "producer-b", "mail", "stock", "mail-b", "stock-b")}
        while self.sent < self.messages or any(self.stored.values()):
            if self.sent >= self.messages:
                self.breaking = False
            name = self.random.choice(list(actors))
            self.now += self.random.expovariate(20)
            next(actors[name])
            if self.faults and not self.random.randrange(50):
                self.write("supervisor", "pause", target="all")
                self.now += self.random.uniform(0, VISIBILITY)
        for sub, id in self.dead:
            self.write("supervisor", "dead", sub=sub, id=id)
        for sub, id in sorted(self.effects):
            self.write("supervisor", "effect", sub=sub, id=id)
        return self

    def write(self, process: str, op: str, outcome: str = "ok", **fields: Any) -> None:
        """Append a line to the history of a process."""
        self.now += 0.0001
        self.lines[process].append({"t": self.now, "p": process, "op": op, "outcome": outcome, **fields})

    def _life(self, slot: str) -> Step:
        """Run a process, and start it again under a new name whenever it is killed."""
        while True:
            self.starts[slot] += 1
            name = f"{slot}-{self.starts[slot]}"
            try:
                yield from (
                    self._produce(name) if slot.startswith("producer") else self._consume(name, slot[:5].strip("-"))
                )
            except Killed:
                self.write("supervisor", "kill", target=name)

    def _risk(self, process: str) -> Step:
        """Let something happen to the process here: others run, or it is paused or killed."""
        if self.random.random() < 0.5:
            yield
        if self.breaking and self.random.random() < 0.02:
            raise Killed
        if self.breaking and self.random.random() < 0.02:
            self.write("supervisor", "pause", target=process)
            until = self.now + self.random.uniform(0, 2 * VISIBILITY)
            while self.now < until:
                yield

    def _produce(self, name: str) -> Step:
        counts: Counter[str] = Counter()
        while True:
            yield
            if self.sent >= self.messages:
                continue
            self.sent += 1
            key = self.random.choice("xyz")
            id = f"{name}-{key}-{counts[key]}"
            fields: dict[str, Any] = {
                "id": id,
                "key": key,
                "n": counts[key],
                "sha": hashlib.sha256(id.encode()).hexdigest(),
            }
            counts[key] += 1
            self.write(name, "publish", "unknown", topic="orders", **fields)
            yield from self._risk(name)
            if self.breaking and self.random.random() < 0.05:
                self.write(name, "publish", "fail", topic="orders", **fields)
                continue
            for sub in SUBS:
                self.stored[sub].append(Stored(fields, self.sent, name))
            yield from self._risk(name)
            self.write(name, "publish", topic="orders", **fields)

    def _consume(self, name: str, sub: str) -> Step:
        while True:
            yield
            began = self.now
            message = self._receive(sub)
            if message is None:
                continue
            receipt, count, fields = message.receipt, message.count, message.fields
            yield from self._risk(name)
            delivery: dict[str, Any] = {
                "receive_count": count,
                "receipt": receipt,
                "token": count,
                "sequence": str(message.sequence),
            }
            self.write(name, "receive", sub=sub, t0=began, **fields, **delivery)
            yield from self._handle(name, sub, message, str(receipt))

    def _receive(self, sub: str) -> Stored | None:
        """Lease the first message that is free; one that was received too often dies."""
        locked = set()
        for message in list(self.stored[sub]):
            if message.visible_at > self.now or (self.ordered and message.fields["key"] in locked):
                locked.add(message.fields["key"])
            elif message.count == MAX_RECEIVES:
                self.stored[sub].remove(message)
                self.dead.append((sub, message.fields["id"]))
            else:
                message.count += 1
                message.visible_at = self.now + VISIBILITY
                message.receipt = f"{message.fields['id']}#{message.count}"
                return message
        return None

    def _handle(self, name: str, sub: str, message: Stored, receipt: str) -> Step:
        started, id = self.now, message.fields["id"]
        what = {"sub": sub, "id": id, "receipt": receipt}
        yield from self._risk(name)
        fails = self.faults and (self.random.random() < 0.1 or id.endswith("7"))
        op = "release" if fails else "ack"
        if not fails:
            self.effects.add((sub, id))
            yield from self._risk(name)
            self.write(name, "handled", key=message.fields["key"], n=message.fields["n"], t0=started, **what)
        began = self.now
        self.write(name, op, "unknown", **what)
        yield from self._risk(name)
        holds = message.receipt == receipt and message in self.stored[sub]
        if holds and fails:
            message.visible_at = self.now
        elif holds:
            self.stored[sub].remove(message)
        yield from self._risk(name)
        self.write(name, op, "ok" if holds else "fail", t0=began, **what)
