"""The keys of an outbox beside a model: a failing event holds back its own key, and no other one."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.faults.models.machines import check_finds, check_model
from tests.outbox.fixtures import sqlite_fixture

from postroad.outbox.dispatching import DispatcherConfig, sqlite
from postroad.outbox.dispatching.dispatcher import store_for
from postroad.outbox.dispatching.store import FIRST_KEY, ClaimedRow, Settlement

pytestmark = pytest.mark.slow

PAST = "2000-01-01T00:00:00.000Z"
ALL = 50
KEYS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)
ENDS = {"sent": "SENT", "retried": "PENDING", "failed": "FAILED", "held": "PENDING"}
END = st.sampled_from(["sent", "failed", "failed", "retried", "held"])
BY = {"by": "ann", "reason": "repaired"}


@dataclass(slots=True)
class Row:
    """One event in the model. `token` is that of its last claim, and `is_claimed` whether that is unsettled."""

    event_id: UUID
    state: str = "PENDING"
    attempts: int = 0
    is_due: bool = True
    is_leased: bool = False
    is_claimed: bool = False
    is_redriven: bool = False
    token: int = 0


@dataclass(slots=True)
class LaneModel:
    """The rules of one key in plain Python; its rows are in the order of their commits."""

    policy: str
    rows: list[Row] = field(default_factory=list)
    gaps: set[UUID] = field(default_factory=set)
    """Events that were passed over, and that no message has named yet."""

    @property
    def is_parked(self) -> bool:
        return self.policy == "park" and any(row.state == "FAILED" for row in self.rows)

    def claimable(self) -> list[Row]:
        """Return the rows that may be published now, in order."""
        found: list[Row] = []
        for row in self.rows:
            if row.state in ("SENT", "SKIPPED") or (row.state == "FAILED" and self.policy == "skip"):
                continue
            if row.state == "FAILED" or row.is_leased or not row.is_due:
                break
            found.append(row)
        # A redriven row waits for those that went on without it.
        overtaken = self.policy == "skip" and any(row.is_leased for row in self.rows)
        return [] if found and found[0].is_redriven and overtaken else found

    def gap_before(self, row: Row) -> list[UUID]:
        return [each.event_id for each in self.rows[: self.rows.index(row)] if each.event_id in self.gaps]

    def settle(self, row: Row, kind: str, later: bool) -> None:
        row.state, row.is_leased, row.is_claimed = ENDS[kind], False, False
        row.attempts += kind != "held"
        row.is_due = row.is_due and not (kind == "retried" and later)
        if kind == "sent":
            self.gaps -= {*self.gap_before(row)}
        if kind == "failed" and self.policy == "skip":
            self.gaps.add(row.event_id)

    def redrive(self, row: Row) -> None:
        """Send a failed row again, with the whole key where that is parked."""
        row.state, row.attempts, row.is_due, row.is_redriven = "PENDING", 0, True, True
        self.gaps.discard(row.event_id)
        for behind in self.rows:
            if self.policy == "park" and behind.state == "PENDING":
                behind.is_due = True

    def skip(self, row: Row) -> None:
        row.state = "SKIPPED"
        self.gaps.add(row.event_id)


class OutboxMachine(RuleBasedStateMachine):
    """Three keys and two dispatchers, which may die and come late."""

    def __init__(self, folder: Path, numbers: itertools.count[int], chance: Random) -> None:
        super().__init__()
        # Hypothesis repeats examples, and each must meet the same chances again.
        chance.seed(0)
        self.fixture = sqlite_fixture(folder / f"{next(numbers)}.db")
        self.runs: list[tuple[int, list[ClaimedRow]]] = []
        self.lanes: dict[str, LaneModel] = {}

    @initialize(policy=st.sampled_from(["block", "park", "skip"]), keys=KEYS)
    def begin(self, policy: str, keys: list[str]) -> None:
        config = DispatcherConfig(policy=policy)  # type: ignore[arg-type]  # it is one of them
        self.stores = [store_for(self.fixture.outbox, owner=owner, config=config) for owner in ("one", "two")]
        for store in self.stores:
            store.open()
        self.lanes = defaultdict(partial(LaneModel, policy))
        self.add(keys)

    @rule(keys=KEYS)
    def add(self, keys: list[str]) -> None:
        for key in keys:
            event = self.fixture.add(key={"k": key})
            self.lanes[key].rows.append(Row(event.event_id))

    @rule(dispatcher=st.integers(0, 1), limit=st.sampled_from([1, 3, ALL, ALL]))
    def claim(self, dispatcher: int, limit: int) -> None:
        claimed: dict[str, list[ClaimedRow]] = defaultdict(list)
        for row in self.stores[dispatcher].claim(limit, after=FIRST_KEY):
            claimed[row.key.lane].append(row)

        for key, rows in claimed.items():
            self._check_claim(self.lanes[key], rows)
            self.runs.append((dispatcher, rows))
        if limit == ALL:
            assert not [key for key, lane in self.lanes.items() if key not in claimed and lane.claimable()]

    def _check_claim(self, lane: LaneModel, rows: Sequence[ClaimedRow]) -> None:
        expected = lane.claimable()[: len(rows)]
        assert [row.id for row in rows] == [str(row.event_id) for row in expected]
        assert [UUID(each) for each in rows[0].gap] == lane.gap_before(expected[0])
        for row, model in zip(rows, expected, strict=True):
            assert row.attempts == model.attempts
            assert row.token > model.token
            model.token, model.is_leased, model.is_claimed = row.token, True, True

    @rule(keys=KEYS, end=END, sent=st.integers(0, 2), later=st.booleans())
    def add_and_dispatch(self, keys: list[str], end: str, sent: int, later: bool) -> None:
        """Do what a dispatcher does in one pass, with the same end for the rows of every key."""
        self.add(keys)
        before = len(self.runs)
        self.claim(0, ALL)
        while len(self.runs) > before:
            self.settle(before, sent, end, later)

    @precondition(lambda self: self.runs)
    @rule(place=st.integers(0, 5), sent=st.integers(0, 3), end=END, later=st.booleans())
    def settle(self, place: int, sent: int, end: str, later: bool) -> None:
        """Settle a run as a dispatcher does: some rows are sent, the next one ends, those behind it are released."""
        dispatcher, rows = self.runs.pop(place % len(self.runs))
        kinds = [*["sent"] * sent, end, *["held"] * len(rows)][: len(rows)]
        settlements = [
            Settlement(row, kind, ENDS[kind], delay=(3_600 if later else 0) if kind == "retried" else None)  # type: ignore[arg-type]
            for row, kind in zip(rows, kinds, strict=True)
        ]

        settled = {each.settlement.row.id for each in self.stores[dispatcher].settle(settlements)}

        lane = self.lanes[rows[0].key.lane]
        known = {str(row.event_id): row for row in lane.rows}
        mine = {row.id for row in rows if known[row.id].is_claimed and known[row.id].token == row.token}
        assert settled == mine
        for row, kind in zip(rows, kinds, strict=True):
            if row.id in mine:
                lane.settle(known[row.id], kind, later)

    @rule()
    def end_all_leases(self) -> None:
        self.fixture.run("UPDATE outbox SET lease_until = ? WHERE lease_until IS NOT NULL", PAST)
        for row in self._rows():
            row.is_leased = False

    @rule()
    def let_the_retries_fall_due(self) -> None:
        self.fixture.run("UPDATE outbox SET next_attempt = ? WHERE state = 'PENDING'", PAST)
        for row in self._rows():
            row.is_due = True

    @precondition(lambda self: self._failed())
    @rule(place=st.integers(0, 5), verb=st.sampled_from(["redrive", "skip"]))
    def repair(self, place: int, verb: str) -> None:
        failed = self._failed()
        lane, row = failed[place % len(failed)]
        getattr(self.fixture.outbox, verb)(row.event_id, **BY)
        getattr(lane, verb)(row)

    def _failed(self) -> list[tuple[LaneModel, Row]]:
        return [(lane, row) for lane in self.lanes.values() for row in lane.rows if row.state == "FAILED"]

    def _rows(self) -> list[Row]:
        return [row for lane in self.lanes.values() for row in lane.rows]

    @invariant()
    def the_rows_are_those_of_the_model(self) -> None:
        stored = {
            UUID(each): found for each, *found in self.fixture.run("SELECT event_id, state, attempts FROM outbox")
        }
        for lane in self.lanes.values():
            for row in lane.rows:
                state, attempts = stored.pop(row.event_id)
                # In a parked key a row that arrives later is parked when a dispatcher looks.
                assert state == row.state or (lane.is_parked and (row.state, state) == ("PENDING", "PARKED"))
                assert max(attempts, 0) == row.attempts
        assert stored == {}

    def teardown(self) -> None:
        self.fixture.outbox.close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> partial[OutboxMachine]:
    chance = Random()
    monkeypatch.setattr(sqlite, "CHANCE", chance)
    return partial(OutboxMachine, tmp_path, itertools.count(), chance)


def test_the_keys_of_an_outbox_agree_with_their_rules(machine: partial[OutboxMachine]) -> None:
    check_model(machine)


def test_a_claim_of_rows_behind_a_failed_one_is_found(
    machine: partial[OutboxMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite.SQLiteDispatchStore, "_before", lambda *_: None)

    check_finds(machine)
