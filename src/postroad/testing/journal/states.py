"""States: folded out of what the journal holds."""

from __future__ import annotations

from typing import Any

from postroad.journal import Journal, JournalEvent, task_history, task_state, tasks_by_state
from postroad.testing.journal.fixture import T0, GroundedTests, add, completed, heartbeat, ids, made, pending


def started(request_id: str, ms: int = 0, **given: Any) -> JournalEvent:
    """A task that was begun."""
    properties = {"requestId": request_id, "effectiveUntil": 1_767_453_800, "workerId": "w-1", "processId": 7}
    return made("Task Processing Started", request_id, ms, properties=properties, **given)


def failed(request_id: str, ms: int = 0, **given: Any) -> JournalEvent:
    """A task that failed for good."""
    properties = {"requestId": request_id, "error": "no", "errorCategory": "auth", "retryCount": 1, "source": "worker"}
    return made("Task Failed", request_id, ms, properties=properties, **given)


def timed_out(request_id: str, ms: int = 0, **given: Any) -> JournalEvent:
    """A task that ran too long."""
    properties = {"requestId": request_id, "timeoutMs": 5, "elapsedMs": 6, "signal": "SIGKILL"}
    return made("Task Timeout", request_id, ms, properties=properties, **given)


def cancelled(request_id: str, ms: int = 0, **given: Any) -> JournalEvent:
    """A task that somebody gave up."""
    return made("Task Cancelled", request_id, ms, properties={"requestId": request_id, "reason": "enough"}, **given)


def one_of_each(**given: Any) -> list[JournalEvent]:
    """Tasks in every state, told out of order."""
    return [
        *(completed("done", 30, **given), heartbeat("done", 40, **given), pending("done", 10, **given)),
        *(started("runs", 20, **given), pending("runs", 10, **given)),
        *(pending("waits", 10, **given),),
        *(failed("fails", 30, **given), started("fails", 20, **given)),
        *(timed_out("late", 30, **given), started("late", 20, **given)),
        *(cancelled("given-up", 30, **given), pending("given-up", 10, **given)),
        *(failed("again", 20, **given), pending("again", 10, **given), pending("again", 30, **given)),
    ]


EXPECTED = {
    "pending": ["again", "waits"],
    "processing": ["runs"],
    "completed": ["done"],
    "failed": ["fails", "late"],
    "cancelled": ["given-up"],
}


class States(GroundedTests):
    """What is read as the state of tasks."""

    def test_the_history_of_a_task_is_all_of_its_events_in_order(self, journal: Journal) -> None:
        events = [pending("req-1", 1), started("req-1", 2), heartbeat("req-1", 2), completed("req-1", 4)]
        add(journal, [*events[::-1], pending("req-10"), pending("req-1", tenant="other")])

        assert ids(task_history(journal, "acme", "req-1")) == ids(events)
        assert task_history(journal, "acme", "nobody") == []

    def test_the_state_of_a_task_is_that_of_the_moment(self, journal: Journal) -> None:
        add(journal, [pending("req-1", 10), started("req-1", 20), completed("req-1", 30, output={"n": 1})])

        states = [task_state(journal, "acme", "req-1", at) for at in (None, T0 + 9, T0 + 10, T0 + 29, T0 + 30)]

        assert [state and state.state for state in states] == ["completed", None, "pending", "processing", "completed"]
        assert states[0] is not None
        assert states[0].output == {"n": 1}
        assert task_state(journal, "acme", "nobody") is None

    def test_every_task_is_listed_once_under_its_state(self, journal: Journal) -> None:
        store = made("Store Opened", "s-1", entity_type="STORE", properties={})
        unknown = made("Task Admired", "unknown", properties={})
        add(journal, [*one_of_each(), store, unknown, pending("elsewhere", tenant="other")])

        assert tasks_by_state(journal, "acme") == EXPECTED
        assert tasks_by_state(journal, "nobody") == {state: [] for state in EXPECTED}

    def test_the_tasks_of_an_app_are_those_it_has_an_event_of(self, journal: Journal) -> None:
        add(journal, [*one_of_each(app="shop"), pending("else", app="other"), started("else", 5, app="third")])

        assert tasks_by_state(journal, "acme", app="shop") == EXPECTED
        assert tasks_by_state(journal, "acme", app="other")["processing"] == ["else"]

    def test_since_a_time_only_tasks_with_an_event_then_are_listed(self, journal: Journal) -> None:
        add(journal, one_of_each())

        found = tasks_by_state(journal, "acme", since=T0 + 30)

        assert found == {**EXPECTED, "pending": ["again"], "processing": []}
        assert tasks_by_state(journal, "acme", since=T0 + 41) == {state: [] for state in EXPECTED}

    def test_a_duplicate_or_late_event_changes_the_lists_as_it_changes_the_fold(self, journal: Journal) -> None:
        events = [pending("req-1", 10), completed("req-1", 30), started("req-1", 20), heartbeat("req-1", 50)]
        for event in (*events, *events):
            journal.append([event])

        late = failed("req-1", 25)
        add(journal, [late])

        state = task_state(journal, "acme", "req-1")
        assert state is not None
        assert (state.state, state.stale) == ("failed", [events[1].event_id])
        assert tasks_by_state(journal, "acme")["failed"] == ["req-1"]
