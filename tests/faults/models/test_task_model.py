"""The states of tasks beside a model: late, early and repeated events never change how a run ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.faults.models.machines import check_finds, check_model

from postroad.journal import STATES, JournalEvent, fold, states, task_history, tasks_by_state
from postroad.testing.journal_queries import (
    T0,
    add,
    cancelled,
    completed,
    failed,
    heartbeat,
    pending,
    started,
    timed_out,
)
from postroad.wiring import connect

pytestmark = pytest.mark.slow

TENANT = "acme"
TASKS = ["t1", "t2"]
MAKERS = {
    "pending": pending,
    "started": started,
    "heartbeat": heartbeat,
    "completed": completed,
    "failed": failed,
    "timeout": timed_out,
    "cancelled": cancelled,
}
ENDS = {"completed": "completed", "failed": "failed", "timeout": "failed", "cancelled": "cancelled"}


@dataclass(slots=True)
class TaskModel:
    """All events of one task: when, its id, its run and its kind."""

    events: set[tuple[int, UUID, int, str]] = field(default_factory=set)

    def state(self, at: int | None = None) -> tuple[str, int] | None:
        """Return the state and the run, now or at a moment: the newest run counts, and its first end decides."""
        known = sorted(event for event in self.events if at is None or event[0] <= at)
        if not known:
            return None
        newest = max(run for _, _, run, _ in known)
        kinds = [kind for _, _, run, kind in known if run == newest]
        ends = [ENDS[kind] for kind in kinds if kind in ENDS]
        if ends:
            return ends[0], newest
        # A heartbeat shows that the task runs; behind the start it says nothing new.
        told = [kind for place, kind in enumerate(kinds) if kind != "heartbeat" or {*kinds[:place]} <= {"pending"}]
        return "pending" if told[-1] == "pending" else "processing", newest


class TaskMachine(RuleBasedStateMachine):
    """Events of two tasks, which reach the journal in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = connect("memory://")
        self.journal = self.backend.journal()
        self.models = {task: TaskModel() for task in TASKS}
        self.stored: list[JournalEvent] = []

    @rule(
        task=st.sampled_from(TASKS),
        kind=st.sampled_from(sorted(MAKERS)),
        run=st.integers(1, 2),
        ms=st.integers(0, 12),
    )
    def append(self, task: str, kind: str, run: int, ms: int) -> None:
        # Of events of the same millisecond, those that arrive later have the smaller ids.
        event = MAKERS[kind](task, ms, properties={"run": run}, event_id=UUID(int=1_000 - len(self.stored)))
        add(self.journal, [event])

        self.stored.append(event)
        self.models[task].events.add((event.timestamp, event.event_id, run, kind))

    @precondition(lambda self: self.stored)
    @rule(places=st.lists(st.integers(0, 30), min_size=1, max_size=4))
    def append_again(self, places: list[int]) -> None:
        for place in places:
            add(self.journal, [self.stored[place % len(self.stored)]])

    @invariant()
    def the_kept_states_are_those_of_the_model(self) -> None:
        expected: dict[str, list[str]] = {state: [] for state in STATES}
        for task, model in self.models.items():
            if (found := model.state()) is not None:
                expected[found[0]].append(task)
        assert tasks_by_state(self.journal, TENANT) == expected

    @invariant()
    def folding_in_any_order_gives_the_state_of_the_model(self) -> None:
        for task, model in self.models.items():
            events = task_history(self.journal, TENANT, task)
            assert len(events) == len(model.events)
            for at in (None, T0 + 6):
                for order in (events, [*events[::-1], *events]):
                    state = fold(order, at)
                    assert (None if state is None else (state.state, state.run)) == model.state(at)

    def teardown(self) -> None:
        self.backend.close()


def test_the_states_of_tasks_agree_with_their_rules() -> None:
    check_model(TaskMachine)


def test_a_heartbeat_that_reopens_a_finished_task_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "TERMINAL", frozenset())

    check_finds(TaskMachine)
