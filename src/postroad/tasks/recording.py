"""Making the events of tasks: who acts, for which task, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from postroad.clock import Clock
from postroad.journal import JournalEvent

WITH_ITS_JOB: Final = "the job was cancelled"
"""The reason of a task that ends because its job does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskId:
    """Which run of which task of whom."""

    tenant_id: str
    request_id: str
    run: int
    job_id: str | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scribe:
    """Writes events in the name of one part of the system."""

    app: str
    environment: str
    origin: str
    clock: Clock
    worker_id: str | None = None

    def event(self, event_type: str, task: TaskId, *, token: int | None = None, **properties: Any) -> JournalEvent:
        """An event of now; properties that are None are left out."""
        context = {"source": "system", "environment": self.environment, "origin": self.origin}
        if self.worker_id is not None:
            context["workerId"] = self.worker_id
        ids = {"requestId": task.request_id, "jobId": task.job_id, "taskId": task.task_id, "run": task.run}
        given = {**ids, "token": token, **properties}
        return JournalEvent.create(
            event_type,
            tenant_id=task.tenant_id,
            entity_id=task.request_id,
            app=self.app,
            context=context,
            properties={name: value for name, value in given.items() if value is not None or name == "output"},
            clock=self.clock,
        )

    def now_ms(self) -> int:
        """The wall clock in milliseconds."""
        return int(self.clock.now().timestamp() * 1_000)
