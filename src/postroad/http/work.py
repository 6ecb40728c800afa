"""What the routes of tasks and jobs share. Looking makes no queue: who submits is made when first asked for."""

from __future__ import annotations

from functools import cached_property

from postroad.arguments import check
from postroad.errors import InvalidTask
from postroad.jobs import Jobs
from postroad.jobs.viewing import JobViews
from postroad.journal import TaskState, task_state
from postroad.settings import Settings
from postroad.tasks import TaskProducer
from postroad.tasks.naming import AnyRequestId
from postroad.wiring.backend import Backend


class WorkDesk:
    """The tasks and jobs of the tenant that the settings name."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings

    @cached_property
    def tasks(self) -> TaskProducer:
        """Submits tasks."""
        return TaskProducer(self._backend, tenant_id=self._settings.tenant, app=self._settings.app)

    def task_state(self, request_id: str, at: int | None = None) -> TaskState | None:
        """How a task stands, or stood at a moment in milliseconds."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        return task_state(self._backend.journal(), self._settings.tenant, request_id, at)

    @cached_property
    def views(self) -> JobViews:
        """Tells how jobs stand."""
        return JobViews.of(self._backend, tenant_id=self._settings.tenant, app=self._settings.app)

    @cached_property
    def jobs(self) -> Jobs:
        """Submits, extends, resumes and cancels jobs."""
        return Jobs(self._backend, tenant_id=self._settings.tenant, app=self._settings.app)
