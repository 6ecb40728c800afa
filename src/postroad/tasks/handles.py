"""Handles of submitted tasks: they wait for the end of a run and return its result."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast

from msgspec import Meta

from postroad import journal
from postroad.arguments import FINITE, check
from postroad.errors import InvalidTask, NotFound, TaskRunCancelled, TaskRunFailed
from postroad.journal import Journal, JournalEvent, StoredJournal, TaskState
from postroad.tasks.leases import TaskRecords, current_state
from postroad.tasks.signatures import Signature
from postroad.tasks.submissions import last_pending

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

R = TypeVar("R")
_Wait = Annotated[float, Meta(ge=0, le=FINITE, description="is not a number of seconds from 0 on")]
# Where nothing wakes a waiting handle, it looks again after so many seconds, and later less often.
_FIRST_LOOK, _LAST_LOOK = 0.05, 2.0
# After a commit of another process that may have ended the task it looks soon, and less often if the wait is long.
_SOON, _SELDOM = 0.1, 1.0
# It is woken in any case; this is for what nobody has thought of.
_SAFETY = 30.0
_FEW = 10
_TASK = "TASK"
OPEN = ("pending", "processing")
"""The states of a run that has not ended."""


class TaskRuns:
    """The runs of the tasks of one tenant: how they ended, and who waits for that."""

    def __init__(self, journal: Journal, records: TaskRecords, tenant: str) -> None:
        self._journal = journal
        self._records = records
        self._tenant = tenant

    def latest(self, request_id: str) -> tuple[str, int]:
        """Return the name of a task and the number of its latest run, or raise `NotFound`."""
        held = self._records.read(self._tenant, request_id)
        if held is not None:
            return held.lease.name, held.lease.run
        # Leases are removed long after the end of a run, and the task of a job has none before it begins.
        pending = last_pending(self._journal, self._tenant, request_id)
        if pending is not None:
            return str(pending.properties.get("name")), pending.properties.get("run", 1)
        return self.name_in_job(request_id), 1

    def name_in_job(self, request_id: str) -> str:
        """Return the name of a job's task, begun or not, or raise `NotFound`."""
        job_id, dot, task_id = request_id.partition(".")
        found = journal.tasks_of_job(self._journal, self._tenant, job_id) if dot else []
        name = next((task["name"] for task in found if task["taskId"] == task_id), None)
        if name is None:
            raise NotFound(f"there is no task {request_id!r}")
        return str(name)

    def state(self, request_id: str, *, end: JournalEvent | None = None) -> TaskState | None:
        """Return the state of a task; `end` counts even if the journal does not hold it yet."""
        state = current_state(self._journal, self._records, self._tenant, request_id)
        if end is None or (state is not None and state.state not in OPEN):
            return state
        return journal.fold([*journal.task_history(self._journal, self._tenant, request_id), end])

    def end(self, request_id: str, run: int) -> JournalEvent | None:
        """Return the event that ended a run; None if it has not ended."""
        held = self._records.read(self._tenant, request_id)
        types = journal.TERMINAL
        if held is not None and held.lease.run <= run:
            outcome = held.lease.outcome
            if held.lease.run < run or outcome is None:
                return None
            types = frozenset({outcome.event_type})
            # What a worker has not recorded yet is in the lease.
            owed = [each for each in self._records.owed(held) if str(each.event_id) == outcome.event_id]
            if owed:
                return owed[0]
        entity = (_TASK, request_id)
        for each in types:
            page = self._journal.query(
                "GSI5", tenant=self._tenant, event_type=each, entity=entity, descending=True, limit=_FEW
            )
            for event in page.events:
                if event.properties.get("run", 1) == run:
                    return journal.whole(event)
        return None

    def _kept_end(self, request_id: str, run: int) -> JournalEvent | None:
        """Return the event that ended a run, once no power cut can undo it; None if it has not ended."""
        if (event := self.end(request_id, run)) is not None:
            self._records.keep()
        return event

    def wait(self, request_id: str, run: int, timeout: float | None = None) -> JournalEvent | None:
        """Wait for the end of a run; return None if it has not ended within so many seconds."""
        deadline = inf if timeout is None else time.monotonic() + timeout
        # The first is set whenever the task may have ended, the second when it has.
        woken, sure = threading.Event(), threading.Event()

        def call(certain: bool) -> None:
            if certain:
                sure.set()
            woken.set()

        watched = self._watch(request_id, call)
        pace = _Pace(is_woken=watched is not None)
        with watched or contextlib.nullcontext():
            while (event := self._kept_end(request_id, run)) is None:
                if (left := deadline - time.monotonic()) <= 0:
                    return None
                woken.wait(min(left, pace.sleep()))
                woken.clear()
                sure.wait(min(pace.rest(), max(0.0, deadline - time.monotonic())))
                sure.clear()
        return event

    async def wait_async(self, request_id: str, run: int) -> JournalEvent:
        """Wait for the end of a run without blocking the event loop."""
        # Children of workers import this folder, and most of them need no event loop.
        import asyncio

        from postroad.engine import in_transaction
        from postroad.receiving import in_thread

        # A sync on another thread would wait for this one's transaction, which waits for it.
        find = self.end if in_transaction() else self._kept_end
        loop = asyncio.get_running_loop()
        woken, sure = asyncio.Event(), asyncio.Event()

        def wake(certain: bool) -> None:
            if certain:
                sure.set()
            woken.set()

        def call(certain: bool) -> None:
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(wake, certain)

        async def asleep(event: asyncio.Event, seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)
            event.clear()

        watched = self._watch(request_id, call)
        pace = _Pace(is_woken=watched is not None)
        with watched or contextlib.nullcontext():
            while (event := await in_thread(find, request_id, run)) is None:
                await asleep(woken, pace.sleep())
                await asleep(sure, pace.rest())
        return event

    def _watch(self, request_id: str, call: Callable[[bool], None]) -> AbstractContextManager[object] | None:
        """Call `call` when the task may have ended (True: it has); None if nothing does so on this store."""
        if not isinstance(self._journal, StoredJournal):
            return None
        return self._journal.watch(self._tenant, (_TASK, request_id), call)


class _Pace:
    """How long a waiting handle sleeps at most, and how long it rests before a look that may be in vain."""

    def __init__(self, *, is_woken: bool) -> None:
        self._is_woken = is_woken
        self._pause = _FIRST_LOOK
        self._began = self._looked_at = time.monotonic()

    def sleep(self) -> float:
        """Return the seconds until the next look, unless something wakes the handle before."""
        self._looked_at = time.monotonic()
        if self._is_woken:
            return _SAFETY
        pause, self._pause = self._pause, min(2 * self._pause, _LAST_LOOK)
        return pause

    def rest(self) -> float:
        """Return the seconds until a look is due for which there is no certain reason."""
        if not self._is_woken:
            return 0.0
        between = min(_SELDOM, max(_SOON, (self._looked_at - self._began) / 10))
        return max(0.0, self._looked_at + between - time.monotonic())


@dataclass(frozen=True, slots=True)
class TaskHandle(Generic[R]):
    """A submitted task. `await handle` does what `handle.wait()` does, without blocking the event loop.

    Args:
        request_id: The id of the task.
        run: The number of the run: 1, and one more for each retry of an ended task.
        created: Whether this call began the run.
    """

    request_id: str
    run: int
    created: bool
    _runs: TaskRuns | None = field(default=None, repr=False, compare=False)
    _signature: Signature | None = field(default=None, repr=False, compare=False)
    _cancel: Callable[[str, int], bool] | None = field(default=None, repr=False, compare=False)

    def wait(self, timeout: float | None = None) -> R:
        """Wait for the end of the run and return the task's result, as its return annotation says.

        Args:
            timeout: The longest time to wait, in seconds; without one it waits until the run ends.

        Raises:
            TaskRunFailed: The run failed; `error`, `category` and `traceback` say why.
            TaskRunCancelled: The run was cancelled.
            TimeoutError: It did not end in time. It goes on, and a later call may wait again.
            Unavailable: The store does not answer, or the disk did not keep the end of the run.
        """
        check(timeout, _Wait | None, "timeout", InvalidTask)
        event = self._known().wait(self.request_id, self.run, timeout)
        if event is None:
            raise TimeoutError(f"task {self.request_id!r} did not end within {timeout:g} seconds")
        return self._result(event)

    def __await__(self) -> Generator[Any, None, R]:
        return self._waited().__await__()

    def status(self) -> TaskState | None:
        """Return the state of the task in its latest run; None if it is not submitted yet."""
        return self._known().state(self.request_id)

    def cancel(self) -> bool:
        """Cancel the run, killing it where it runs; return False if it had ended already."""
        self._known()
        assert self._cancel is not None
        return self._cancel(self.request_id, self.run)

    async def _waited(self) -> R:
        return self._result(await self._known().wait_async(self.request_id, self.run))

    def _known(self) -> TaskRuns:
        if self._runs is None:
            raise InvalidTask(
                f"requestId: the handle of {self.request_id!r} was not made by a producer",
                field="requestId",
                remedy="Get one with producer.handle(request_id).",
            )
        return self._runs

    def _result(self, event: JournalEvent) -> R:
        known, request_id = event.properties, self.request_id
        if event.event_type == journal.COMPLETED:
            output = known.get("output")
            return cast("R", output if self._signature is None else self._signature.read_result(output))
        if event.event_type == journal.CANCELLED:
            raise TaskRunCancelled(request_id, self.run, str(known.get("reason", "cancelled")))
        if event.event_type == journal.TIMEOUT:
            error, category = f"timed out after {known.get('elapsedMs')} ms", "timeout"
        else:
            error, category = str(known.get("error")), str(known.get("errorCategory"))
        raise TaskRunFailed(
            request_id, self.run, error=error, category=category, traceback="\n".join(known.get("traceback") or ())
        )
