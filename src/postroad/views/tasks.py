"""Tasks in documents: how one stands, and what was submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postroad.journal import TaskState
    from postroad.tasks import TaskHandle


def task_document(state: TaskState) -> dict[str, Any]:
    """How a task stands."""
    return {
        "requestId": state.request_id,
        "state": state.state,
        "run": state.run,
        "attempt": state.attempt,
        "lastEventType": state.last_event_type,
        "lastEventAt": state.last_event_at,
        "jobId": state.job_id,
        "taskId": state.task_id,
        "output": state.output,
        "error": state.error,
        "errorCategory": state.error_category,
    }


def submitted(handle: TaskHandle, state: str) -> dict[str, Any]:
    """What became of a submission."""
    return {"requestId": handle.request_id, "state": state, "run": handle.run, "created": handle.created}
