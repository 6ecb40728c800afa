"""The item of a job, and the events it owes the journal.

The item says whether tasks may still be added and whether the job is over; every change of it is conditional.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from postroad import failpoints
from postroad.items import ABSENT, Expect
from postroad.journal import Appends, JournalEvent, Owing, OwingItems, owing_nothing
from postroad.ports import Store
from postroad.tasks import open_job_key

Status = Literal["processing", "completed", "partial_failure", "cancelled"]
STATUSES: Final = ("processing", "completed", "partial_failure", "cancelled")
_PAGE: Final = 200


class Job(Owing, frozen=True, kw_only=True, rename="camel"):
    """A job as its item holds it."""

    status: Status = "processing"
    total: int
    digest: str
    """Tells its first tasks apart from others."""
    queue: str
    created_at: int
    completed_at: int | None = None
    request_id: str | None = None
    resumes: int = 0
    failure_told: bool = False
    """Whether a failure was recorded since the job began or was last resumed."""
    resuming: dict[str, int] = {}
    """Tasks that begin anew, with the run that they are to begin."""

    @property
    def is_over(self) -> bool:
        """Whether nothing can be added or resumed."""
        return self.status in ("completed", "cancelled")


class HeldJob(msgspec.Struct, frozen=True):
    """A job as it was read or written, with the version that the next write expects."""

    job: Job
    version: int


class JobRecords:
    """Reads and writes the items of jobs together with their events."""

    def __init__(self, backend: Store, tenant: str, journal: Appends | None = None) -> None:
        self._backend = backend
        self._tenant = tenant
        self._items = backend.items()
        recorded_in: Appends = backend.journal() if journal is None else journal
        self._jobs = OwingItems(Job, HeldJob, self._items, backend.blobs(), recorded_in)
        # A journal that was brought along has commits of its own.
        self._together = journal is None and backend.joins_writes

    def read(self, job_id: str) -> HeldJob | None:
        """The job as it stands, its events recorded."""
        held = self._jobs.read(self._key(job_id))
        if held is None or not held.job.owes:
            return held
        return self._pay(job_id, held)

    def write(
        self, job_id: str, job: Job, events: Sequence[JournalEvent], *, expect: HeldJob | None, is_open: bool
    ) -> HeldJob | None:
        """Write the job if it is still as expected, and record the events; None when it is not."""
        version: int | Expect = ABSENT if expect is None else expect.version
        if self._together:
            with self._backend.transaction():
                held = self._put(job_id, job, version)
                if held is not None:
                    self._mark(job_id, is_open=is_open)
                    self._append(events)
            return held
        if is_open:
            self._mark(job_id, is_open=True)
        due = [*self._jobs.owed(job), *events]
        path = f"jobs/{job_id}/{due[-1].event_id if due else 'none'}.json"
        held = self._put(job_id, self._jobs.owing(job, due, path), version)
        if held is None:
            return None
        held = self._pay(job_id, held)
        if not is_open:
            self._mark(job_id, is_open=False)
        return held

    def open_jobs(self) -> Iterator[str]:
        """The jobs that may have to be brought forward."""
        prefix, cursor = self._open_key(""), None
        while True:
            page = self._items.scan(prefix, limit=_PAGE, cursor=cursor)
            yield from (item.key.removeprefix(prefix) for item in page.items)
            if (cursor := page.cursor) is None:
                return

    def close(self, job_id: str) -> None:
        """Have the job no longer looked at."""
        self._mark(job_id, is_open=False)

    def _key(self, job_id: str) -> str:
        return f"{self._tenant}/JOB#{job_id}"

    def _open_key(self, job_id: str) -> str:
        return open_job_key(self._tenant, job_id)

    def _mark(self, job_id: str, *, is_open: bool) -> None:
        if is_open:
            self._items.put(self._open_key(job_id), b"1")
        else:
            self._items.delete(self._open_key(job_id))

    def _put(self, job_id: str, job: Job, version: int | Expect) -> HeldJob | None:
        ok, found = self._jobs.put(self._key(job_id), job, version)
        return found if ok else None

    def _append(self, events: Sequence[JournalEvent]) -> None:
        failpoints.hit("dispatcher.before_job_event")
        self._jobs.append(events)

    def _pay(self, job_id: str, held: HeldJob) -> HeldJob:
        """Record what the item owes, then say so in the item; events that are there already stay as they are."""
        self._append(self._jobs.owed(held.job))
        paid = self._put(job_id, owing_nothing(held.job), held.version)
        self._jobs.forget(held.job)
        return paid or self.read(job_id) or held
