"""What the routes of tasks and jobs share: a producer and the jobs, made when first asked for."""

from __future__ import annotations

from functools import cached_property

from postroad.jobs import Jobs
from postroad.settings import Settings
from postroad.tasks import TaskProducer
from postroad.wiring.backend import Backend


class WorkDesk:
    """The tasks and jobs of the tenant that the settings name."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings

    @cached_property
    def tasks(self) -> TaskProducer:
        """Submits tasks and tells how they stand."""
        return TaskProducer(self._backend, tenant_id=self._settings.tenant, app=self._settings.app)

    @cached_property
    def jobs(self) -> Jobs:
        """Submits jobs and tells how they stand."""
        return Jobs(self._backend, tenant_id=self._settings.tenant, app=self._settings.app)
