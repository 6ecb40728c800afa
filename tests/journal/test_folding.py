"""Folding: any order, duplication or delay of the same events gives the same state."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from postroad.journal import EVENT_TO_STATE, STATES, TERMINAL, JournalEvent, fold
from postroad.journal.states import Progress

T0 = 1_767_453_739_640
P, S, PF, C, F, T, H, N, X = (
    "Task Pending",
    "Task Processing Started",
    "Task Processing Failed",
    "Task Completed",
    "Task Failed",
    "Task Timeout",
    "Task Heartbeat",
    "Task Interrupted",
    "Task Cancelled",
)


def event(event_type: str, ms: int, number: int = 0, **properties: Any) -> JournalEvent:
    """An event as it is read, whatever its properties."""
    return JournalEvent(
        event_type=event_type,
        entity_type="TASK",
        entity_id="req-1",
        tenant_id="acme",
        app="shop",
        timestamp=T0 + ms,
        event_id=UUID(int=number),
        context={},
        properties=properties,
    )


def history(*types: str | tuple[str, dict[str, Any]]) -> list[JournalEvent]:
    """Events one millisecond after another."""
    pairs = [(each, {}) if isinstance(each, str) else each for each in types]
    return [event(kind, ms, **properties) for ms, (kind, properties) in enumerate(pairs)]


def state_of(*types: str | tuple[str, dict[str, Any]]) -> tuple[str, int]:
    """State and run after these events."""
    state = fold(history(*types))
    assert state is not None
    return state.state, state.run


events = st.lists(
    st.builds(
        event,
        st.sampled_from([*EVENT_TO_STATE, "Task Admired", "Task Health Check"]),
        st.integers(0, 4),
        st.integers(0, 10**9),
        run=st.one_of(st.none(), st.integers(1, 3)),
        attemptNumber=st.one_of(st.none(), st.integers(1, 3)),
    ),
    max_size=12,
    unique_by=lambda made: (made.timestamp, made.event_id),
)


@given(events, st.randoms(use_true_random=False))
def test_any_order_and_duplication_fold_to_the_same_state(happened: list[JournalEvent], chance: random.Random) -> None:
    shuffled = [*happened, *chance.choices(happened, k=5)] if happened else []
    chance.shuffle(shuffled)

    assert fold(shuffled) == fold(happened)


@given(events, st.integers(-1, 5))
def test_a_delay_changes_nothing_once_everything_is_there(happened: list[JournalEvent], at: int) -> None:
    early = [made for made in happened if made.timestamp <= T0 + at]

    assert fold(happened, at=T0 + at) == fold(early)


@given(events)
def test_one_step_after_another_ends_where_the_fold_ends(happened: list[JournalEvent]) -> None:
    progress = Progress()
    for made in sorted(happened, key=lambda made: (made.timestamp, made.event_id)):
        progress = progress.after(made.event_type, made.properties)

    folded = fold(happened)
    assert (progress.state, progress.run) == (("", 0) if folded is None else (folded.state, folded.run))


@given(events)
def test_a_decided_run_stays_decided_whatever_comes_later(happened: list[JournalEvent]) -> None:
    before = fold(happened)
    if before is None or before.state not in ("completed", "failed", "cancelled"):
        return
    later = [event(kind, 100, run=before.run) for kind in EVENT_TO_STATE]

    after = fold([*happened, *later])

    assert after is not None
    assert (after.state, after.run, after.last_event_at) == (before.state, before.run, before.last_event_at)


@pytest.mark.parametrize(
    ("types", "state"),
    [
        ([P], "pending"),
        ([P, S], "processing"),
        ([P, S, PF], "processing"),
        ([P, S, PF, S], "processing"),
        ([P, S, N], "pending"),
        ([P, S, N, S], "processing"),
        ([P, H], "processing"),
        ([H], "processing"),
        ([P, S, N, H], "pending"),
        ([P, H, N], "pending"),
        ([P, S, C], "completed"),
        ([P, S, F], "failed"),
        ([P, S, T], "failed"),
        ([P, X], "cancelled"),
        ([P, S, C, H], "completed"),
        ([P, S, C, F], "completed"),
        ([P, S, F, C, S], "failed"),
        ([C], "completed"),
    ],
)
def test_a_run_is_decided_by_its_first_terminal_else_by_its_latest_event(types: list[str], state: str) -> None:
    assert state_of(*types) == (state, 1)


def test_each_pending_begins_a_run_and_only_the_highest_counts() -> None:
    assert state_of(P, S, F, P) == ("pending", 2)
    assert state_of(P, S, F, P, S, C) == ("completed", 2)


def test_an_event_that_names_its_run_belongs_there_wherever_it_stands() -> None:
    assert state_of((P, {"run": 1}), (P, {"run": 2}), (F, {"run": 1})) == ("pending", 2)
    assert state_of((C, {"run": 2}), (P, {"run": 1}), (P, {"run": 2})) == ("completed", 2)


def test_a_late_terminal_is_listed_as_stale() -> None:
    happened = [event(P, 0, 1), event(C, 1, 2), event(F, 2, 3), event(T, 3, 4), event(H, 4, 5)]

    state = fold(happened)

    assert state is not None
    assert state.stale == [UUID(int=3), UUID(int=4)]
    assert (state.last_event_type, state.last_event_at) == (C, T0 + 1)


def test_of_two_terminals_in_one_millisecond_the_smaller_id_decides() -> None:
    state = fold([event(F, 0, 2), event(C, 0, 1)])

    assert state is not None
    assert (state.state, state.stale) == ("completed", [UUID(int=2)])


def test_the_state_tells_what_the_events_told() -> None:
    happened = history(
        (P, {"jobId": "j", "taskId": "a"}),
        (S, {"attemptNumber": 1, "effectiveUntil": 100}),
        (PF, {"attemptNumber": 1, "error": "ETIMEDOUT", "errorCategory": "network"}),
        (S, {"attemptNumber": 2, "effectiveUntil": 200}),
        (H, {"effectiveUntil": 300}),
    )

    state = fold(happened)

    assert state is not None
    assert (state.request_id, state.state, state.attempt, state.effective_until) == ("req-1", "processing", 2, 300)
    assert (state.job_id, state.task_id) == ("j", "a")
    assert (state.error, state.error_category) == ("ETIMEDOUT", "network")
    assert (state.last_event_type, state.last_event_at) == (H, T0 + 4)


@pytest.mark.parametrize(
    ("last", "output", "error", "category"),
    [
        ((C, {"output": [1]}), [1], None, None),
        ((F, {"error": "no", "errorCategory": "auth"}), None, "no", "auth"),
        ((T, {"elapsedMs": 5}), None, "timed out after 5 ms", "timeout"),
        ((X, {"reason": "enough"}), None, None, None),
    ],
)
def test_the_deciding_event_gives_output_and_error(
    last: tuple[str, dict[str, Any]], output: Any, error: str | None, category: str | None
) -> None:
    state = fold(history(P, (PF, {"attemptNumber": 1, "error": "first", "errorCategory": "network"}), last))

    assert state is not None
    assert (state.output, state.error, state.error_category) == (output, error, category)


def test_attempts_without_a_number_are_counted() -> None:
    state = fold(history(P, S, PF, S))

    assert state is not None
    assert state.attempt == 2


def test_nothing_folds_to_nothing() -> None:
    assert fold([]) is None
    assert fold(history("Task Admired", "Task Health Check")) is None
    assert fold(history(P), at=T0 - 1) is None


def test_every_state_has_its_events() -> None:
    assert set(EVENT_TO_STATE.values()) == set(STATES)
    assert {EVENT_TO_STATE[kind] for kind in TERMINAL} == {"completed", "failed", "cancelled"}
