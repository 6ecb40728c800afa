"""Looking at jobs: how each stands, all of them, and as a picture. Nothing is made by it, no queue either."""

from __future__ import annotations

from typing import Literal, Self

import msgspec

from postroad.arguments import check, whole_number
from postroad.errors import InvalidInput, InvalidJob, NotFound
from postroad.jobs.books import STATUSES
from postroad.jobs.drawing import draw
from postroad.jobs.graph import JobId
from postroad.jobs.mover import Mover
from postroad.jobs.status import JobStatus, JobSummary, status_of
from postroad.journal.states import JOB_CREATED
from postroad.tasks.grounds import Ground


class JobPage(msgspec.Struct, frozen=True):
    """Jobs, newest first; `cursor` is None on the last page."""

    items: list[JobSummary]
    cursor: str | None


class JobViews:
    """The jobs of one tenant, to be looked at."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    @classmethod
    def of(cls, backend: Ground, *, tenant_id: str, app: str) -> Self:
        """The views of one who has nothing to submit."""
        return cls(Mover(backend, queue="tasks", tenant=tenant_id, app=app))

    def job_status(self, job_id: str) -> JobStatus | None:
        """How the job and each of its tasks stand; None when there is no such job."""
        check(job_id, JobId, "jobId", InvalidJob)
        held = self._mover.jobs.read(job_id)
        return None if held is None else status_of(self._mover, job_id, held.job)

    def list_jobs(self, limit: int = 20, cursor: str | None = None, status: str | None = None) -> JobPage:
        """Jobs, newest first, of one status if one is named."""
        check(limit, whole_number(1, 100), "limit")
        if status is not None and status not in STATUSES:
            raise InvalidInput(
                f"status: {status!r} is none of {', '.join(STATUSES)}", field="status", remedy="Name one of them."
            )
        found: list[JobSummary] = []
        while len(found) < limit:
            page = self._mover.journal.query(
                "GSI4", tenant=self._mover.tenant, event_type=JOB_CREATED, descending=True, limit=limit - len(found),
                cursor=cursor, raw=True,
            )  # fmt: skip
            found += [each for event in page.events if (each := self._summary(event.entity_id, status)) is not None]
            cursor = page.cursor
            if cursor is None:
                break
        return JobPage(found, cursor)

    def graph(self, job_id: str, format: Literal["text", "mermaid", "dot"] = "text") -> str:
        """The graph with the state of each task, to be read or drawn."""
        found = self.job_status(job_id)
        if found is None:
            raise not_found(job_id)
        return draw(found, format)

    def _summary(self, job_id: str, status: str | None) -> JobSummary | None:
        held = self._mover.jobs.read(job_id)
        if held is None or status not in (None, held.job.status):
            return None
        return JobSummary(job_id, held.job.status, held.job.total, held.job.created_at)


def not_found(job_id: str) -> NotFound:
    """What is told of a job that nobody submitted."""
    return NotFound(f"there is no job {job_id!r}")
