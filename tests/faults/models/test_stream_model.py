"""The leases of a stream beside a model: fair shares, tokens that grow, and positions that stale leases cannot move."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.faults.models.machines import STEPS, check_finds, check_model
from tests.memory import memory_streams

from postroad.streams import TRIM_HORIZON, Record, ShardLease, sqlite
from postroad.testing.clock import FakeClock

pytestmark = pytest.mark.slow

SHARDS = 5
CONSUMER = "reader"


@dataclass(slots=True)
class HeldShard:
    """One shard in the model. `until` is when its lease ends."""

    worker: str = ""
    token: int = 0
    until: float = 0.0
    position: str | None = None


@dataclass(slots=True)
class LeaseModel:
    """The rules of leases in plain Python."""

    shards: dict[str, HeldShard]
    now: float = 0.0
    seen: dict[str, float] = field(default_factory=dict)
    """Until when each worker counts as alive."""

    def lease(self, worker: str, seconds: float) -> dict[str, int]:
        """Return the shards of the worker with their tokens: its own, then free ones, up to a fair share."""
        self.seen[worker] = self.now + seconds
        alive = [name for name, until in self.seen.items() if until > self.now]
        fair = (SHARDS + len(alive) - 1) // len(alive)
        own = [name for name, shard in self.shards.items() if shard.until > self.now and shard.worker == worker]
        free = [name for name, shard in self.shards.items() if shard.until <= self.now]
        for name in own[fair:]:
            self.shards[name].until = self.now
        kept = own[:fair]
        for name in free[: fair - len(kept)]:
            self.shards[name].worker = worker
            self.shards[name].token += 1
            kept.append(name)
        for name in kept:
            self.shards[name].until = self.now + seconds
        return {name: self.shards[name].token for name in kept}

    def checkpoint(self, shard: str, sequence: str, lease: ShardLease | None) -> bool:
        held = self.shards[shard]
        if lease is not None and ((lease.worker, lease.token) != (held.worker, held.token) or held.until <= self.now):
            return False
        held.position = max(held.position or "", sequence)
        return True


class LeaseMachine(RuleBasedStateMachine):
    """Three workers that share the shards of one consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.stream = memory_streams(self.clock).stream("clicks", shards=SHARDS, retention=1e6)
        self.model = LeaseModel({name: HeldShard() for name in self.stream.shards()})
        self.records: dict[str, list[tuple[str, bytes]]] = {name: [] for name in self.stream.shards()}
        self.leases: list[ShardLease] = []
        self.numbers = itertools.count(1)

    @rule(keys=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5))
    def put(self, keys: list[str]) -> None:
        data = [str(next(self.numbers)).encode() for _ in keys]
        results = self.stream.put([Record(key, each) for key, each in zip(keys, data, strict=True)])

        for each, result in zip(data, results, strict=True):
            assert result.shard is not None
            assert result.sequence is not None
            known = self.records[result.shard]
            assert not known or result.sequence > known[-1][0]
            known.append((result.sequence, each))

    @rule(worker=st.sampled_from(["ann", "bob", "cat"]), seconds=st.sampled_from([5, 5, 30, 100]))
    def lease(self, worker: str, seconds: float) -> None:
        granted = self.stream.lease(CONSUMER, worker, seconds=seconds)

        assert {lease.shard: lease.token for lease in granted} == self.model.lease(worker, seconds)
        assert {lease.worker for lease in granted} <= {worker}
        self.leases += granted

    @precondition(lambda self: self.leases)
    @rule(back=st.one_of(st.integers(0, 3), st.integers(0, 30)), place=st.integers(0, 5), fenced=st.booleans())
    def checkpoint(self, back: int, place: int, fenced: bool) -> None:
        lease = self.leases[-1 - back % len(self.leases)]
        records = self.records[lease.shard]
        if not records:
            return
        sequence, _ = records[place % len(records)]
        given = lease if fenced else None

        moved = self.stream.checkpoint(CONSUMER, lease.shard, sequence, lease=given)

        assert moved is self.model.checkpoint(lease.shard, sequence, given)

    @rule(seconds=st.sampled_from(STEPS))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule(seconds=st.sampled_from([-3600.0, 3600.0]))
    def step_the_wall_clock(self, seconds: float) -> None:
        self.clock.step(seconds)

    @invariant()
    def positions_are_those_of_the_model(self) -> None:
        for name, held in self.model.shards.items():
            assert self.stream.position(CONSUMER, name) == held.position

    @invariant()
    def a_read_behind_the_position_has_no_holes(self) -> None:
        for name, held in self.model.shards.items():
            found = self.stream.read(name, after=held.position or TRIM_HORIZON, limit=1_000)
            behind = [each for each in self.records[name] if each[0] > (held.position or "")]
            assert [(each.sequence, each.data) for each in found] == behind


def test_leases_agree_with_their_rules() -> None:
    check_model(LeaseMachine)


def test_a_checkpoint_under_a_stale_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_HELD", "SELECT 1 WHERE ?5 > 0 OR coalesce(?1, ?2, ?3, ?4) IS NULL")

    check_finds(LeaseMachine)
