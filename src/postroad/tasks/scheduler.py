"""The scheduler: it submits the runs of schedules when they are due, and sends tasks whose long delay is over.

What is due next is kept in memory; a tick is claimed by a write that expects the item as it was last seen. So an idle
scheduler costs no request, and one that finds the item changed reads it again: another worker was faster, or somebody
paused it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import cache
from math import inf
from typing import Any, NamedTuple

import msgspec

from postroad import failpoints
from postroad.clock import Clock
from postroad.errors import ConfigurationError, Conflict, InvalidInput
from postroad.items import ABSENT, Items
from postroad.ports import Store
from postroad.queues import MAX_DELAY
from postroad.tasks import schedule_records
from postroad.tasks.delayed_tasks import MOST_FAILURES, DelayedTasks, Retries
from postroad.tasks.messages import log_event, open_queue, tenant_and_app
from postroad.tasks.processes import TaskEntry
from postroad.tasks.producer import TaskProducer
from postroad.tasks.registry import TaskDefinition, TaskRegistry, default_tasks
from postroad.tasks.schedule_records import KnownSchedule, ScheduleState, schedule_key, tick_id
from postroad.tasks.threads import Role

Tasks = Mapping[str, TaskDefinition] | Mapping[str, TaskEntry]
"""Tasks by their names, with and without schedules."""
_IN_ONE_COMMIT = 50
_ROLE_SECONDS = 0.1
# How long another worker that claimed a tick may take to submit its run, where that is not one commit.
_PATIENCE_SECONDS = 5.0
# How often paused schedules are read again, on the embedded engine and where reads cost requests.
_RESUME_SECONDS, _RESUME_SECONDS_FAR = 5.0, 60.0


class _Claim(NamedTuple):
    """A schedule whose ticks are to be submitted by this scheduler."""

    name: str
    known: KnownSchedule
    ticks: tuple[int, ...]


class Scheduler:
    """Submits a run for each tick of every schedule, and sends tasks whose long delay is over.

    Any number may run at once: each tick is claimed by one of them, under the request id `schedule-NAME-TIME`. A tick
    that was claimed by a process that died is submitted by the next one that looks.

    Args:
        backend: The store, as `connect()` returns it.
        queue: The queue that the runs go to; on AWS without the stage.
        tenant_id: The tenant of the tasks; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.
        registry: The tasks whose schedules are run; by default those of `@task`.
        clock: The clock that says what is due; by default that of the backend. Tests pass a `FakeClock`.
        tasks: Returns the tasks instead of the registry, or None while they are not known; `TaskWorker.tasks` is one.

    Raises:
        QueueNotFound: The queue does not exist on AWS; create it with `postroad task init`.

    Example:
        Scheduler(backend).tick()
    """

    def __init__(
        self,
        backend: Store,
        *,
        queue: str = "tasks",
        tenant_id: str | None = None,
        app: str | None = None,
        registry: TaskRegistry | None = None,
        clock: Clock | None = None,
        tasks: Callable[[], Tasks | None] | None = None,
    ) -> None:
        self._backend = backend
        self._tenant, self._app = tenant_and_app(tenant_id, app)
        self._queue = queue
        self._clock = backend.clock if clock is None else clock
        known = default_tasks if registry is None else registry
        self._tasks = tasks or (lambda: {each.name: each for each in known.definitions()})
        self._items: Items = backend.items()
        tenant, app = self._tenant, self._app
        self._producer = cache(lambda queue: TaskProducer(backend, queue=queue, tenant_id=tenant, app=app))
        is_near = open_queue(backend, queue).traits.short_waits
        self._resume_seconds = _RESUME_SECONDS if is_near else _RESUME_SECONDS_FAR
        self._delays = DelayedTasks(backend, self._tenant, self._app, look_ahead=0.0 if is_near else MAX_DELAY)
        self._registered: Tasks = {}
        self._known: dict[str, KnownSchedule | None] = {}
        """Each schedule of these tasks; None if it has to be read again."""
        self._due_at: dict[str, float] = {}
        """When each is due, in seconds since 1970."""
        self._retries = Retries()
        """Those that failed, or that another worker has claimed."""
        self._resume_look_at = 0.0
        self._last_look = 0.0

    def tick(self) -> int:
        """Submit every run that is due and send every delayed task that is due; return how many there were.

        The first error of a schedule is raised after the others were handled.
        """
        errors: list[Exception] = []
        done = self._turn(errors, at_once=True)
        if errors:
            raise errors[0]
        return done

    def role(self) -> Role:
        """Return the role `scheduler` of a worker."""
        return Role("scheduler", _ROLE_SECONDS, self._run_once)

    def _run_once(self) -> int:
        errors: list[Exception] = []
        done = self._turn(errors, at_once=False)
        if self._retries.in_a_row >= MOST_FAILURES:
            raise errors[-1]
        return done

    def _turn(self, errors: list[Exception], *, at_once: bool) -> int:
        """Do what is due. Without `at_once`, leave out what failed or is claimed, and return after one round."""
        now = self._clock.now()
        if now.timestamp() < self._last_look - schedule_records.SET_BACK_SECONDS:
            self._registered = {}
        self._last_look = now.timestamp()
        self._register(now)
        if at_once or time.monotonic() >= self._resume_look_at:
            self._resume_look_at = time.monotonic() + self._resume_seconds
            self._forget([name for name, known in self._known.items() if known is not None and known.state.paused])
        done = self._delays.send(now, errors, at_once=at_once)
        failed: set[str] = set()
        self._retries.in_a_row = 0
        while names := self._due(now, failed, at_once=at_once):
            size = _IN_ONE_COMMIT if self._backend.joins_writes else 1
            for start in range(0, len(names), size):
                done += self._advance_together(names[start : start + size], now, failed, errors)
                if self._retries.in_a_row >= MOST_FAILURES:
                    return done
            if not at_once:
                break
        return done

    def _due(self, now: datetime, failed: set[str], *, at_once: bool) -> list[str]:
        moment = now.timestamp()
        due = [name for name, due_at in self._due_at.items() if due_at <= moment]
        return [name for name in due if name not in failed and (at_once or self._retries.may_try(name))]

    def _register(self, now: datetime) -> None:
        """Store the schedules of the tasks where they are new or changed; the last worker that started decides."""
        tasks = self._tasks()
        if tasks is None or tasks == self._registered:
            return
        stored = schedule_records.read_all(self._items, self._tenant)
        self._known.clear()
        self._due_at.clear()
        names = list(tasks)
        for start in range(0, len(names), _IN_ONE_COMMIT):
            with self._one_commit():
                for name in names[start : start + _IN_ONE_COMMIT]:
                    self._define(tasks[name], stored.get(name), now)
        self._registered = tasks

    def _define(self, task: TaskDefinition | TaskEntry, stored: KnownSchedule | None, now: datetime) -> None:
        """Store the schedule of one task, even if workers with other definitions write at the same time."""
        name, schedule, queue = task.name, task.schedule, task.queue or self._queue
        while True:
            if schedule is None:
                if stored is not None:
                    self._items.delete(schedule_key(self._tenant, name))
                return
            if stored is None:
                state = ScheduleState(task=name, schedule=schedule, queue=queue, after=int(now.timestamp()))
            elif (stored.state.schedule, stored.state.queue) != (schedule, queue) or stored.state.is_ahead(now):
                state = stored.state.defined(schedule, queue, now)
            else:
                self._remember(name, stored)
                return
            if self._write(name, state, None if stored is None else stored.version) is not None:
                return
            stored = self._stored(name)

    def _stored(self, name: str) -> KnownSchedule | None:
        """Return the schedule as it is now. What cannot be read is removed, so that the definition replaces it."""
        item = self._items.get(schedule_key(self._tenant, name))
        if item is None:
            return None
        try:
            return schedule_records.known_schedule(item)
        except (ConfigurationError, msgspec.DecodeError):
            self._items.delete(item.key, expect=item.version)
            return None

    def _advance_together(self, names: Sequence[str], now: datetime, failed: set[str], errors: list[Exception]) -> int:
        """Advance these schedules, in one commit where there is one; after an error each on its own."""
        try:
            with self._one_commit():
                done = self._advance(names, now)
        except Exception as error:
            # What was written is undone, or not known.
            self._forget(names)
            if len(names) > 1:
                return sum(
                    self._advance_together([name], now, failed, errors)
                    for name in names
                    if self._retries.in_a_row < MOST_FAILURES
                )
            (name,) = names
            if self._retries.failed(name):
                log_event("schedule_failed", schedule=name, error=error)
            errors.append(error)
            failed.add(name)
            return 0
        self._retries.succeeded(names)
        return done

    def _advance(self, names: Sequence[str], now: datetime) -> int:
        """Claim what is due of these schedules and submit what they owe; return how many runs began."""
        claims = [claim for name in names if (claim := self._claim(name, now)) is not None]
        if not claims:
            return 0
        failpoints.hit("scheduler.after_claim")
        begun = self._submit(claims)
        failpoints.hit("scheduler.after_submit")
        for claim in claims:
            if claim.known.state.owed:
                self._write(claim.name, claim.known.state.settled(), claim.known.version)
        return begun

    def _claim(self, name: str, now: datetime) -> _Claim | None:
        """Claim what is due of a schedule; return None if nothing is, or if another worker was faster."""
        known = self._known[name] or self._read(name)
        if known is None:
            return None
        if known.state.owed:
            return _Claim(name, known, known.state.owed)
        claimed = known.state.claimed(now)
        if claimed is None:
            self._remember(name, known)
            return None
        # In one commit with its runs it owes nothing.
        written = self._write(name, claimed.settled() if self._backend.joins_writes else claimed, known.version)
        return None if written is None else _Claim(name, written, claimed.owed)

    def _submit(self, claims: Sequence[_Claim]) -> int:
        """Submit the runs of several schedules at once, or those of one schedule one by one."""
        if len(claims) == 1:
            (claim,) = claims
            return sum(self._submit_tick(claim, tick) for tick in claim.ticks)
        calls: dict[str, list[tuple[str, Mapping[str, Any], str]]] = {}
        for claim in claims:
            of_queue = calls.setdefault(claim.known.state.queue, [])
            of_queue += [(claim.known.state.task, {}, tick_id(claim.name, tick)) for tick in claim.ticks]
        return sum(
            handle.created for queue, found in calls.items() for handle in self._producer(queue).submit_many(found)
        )

    def _submit_tick(self, claim: _Claim, tick: int) -> bool:
        request_id = tick_id(claim.name, tick)
        try:
            return self._producer(claim.known.state.queue).submit(claim.known.state.task, request_id=request_id).created
        except (InvalidInput, Conflict) as error:
            # It would be refused each time.
            log_event("schedule_refused", schedule=claim.name, request_id=request_id, error=error)
            return False

    def _read(self, name: str) -> KnownSchedule | None:
        item = self._items.get(schedule_key(self._tenant, name))
        if item is None:
            # A worker that started later has this task without a schedule.
            del self._known[name], self._due_at[name]
            return None
        return schedule_records.known_schedule(item)

    def _write(self, name: str, state: ScheduleState, version: int | None) -> KnownSchedule | None:
        """Write the state if it is as it was last seen; else it is read again later, and None is returned."""
        value = msgspec.json.encode(state)
        written = self._items.put(schedule_key(self._tenant, name), value, expect=version or ABSENT)
        if not written.ok or written.item is None:
            self._forget([name])
            if not self._backend.joins_writes:
                # It may be about to submit the run; if it is still owed by then, that worker died.
                self._retries.wait(name, _PATIENCE_SECONDS)
            return None
        known = KnownSchedule(state, written.item.version)
        self._remember(name, known)
        return known

    def _remember(self, name: str, known: KnownSchedule) -> None:
        self._known[name] = known
        next_at = known.state.next_at()
        self._due_at[name] = 0.0 if known.state.owed else inf if next_at is None else next_at.timestamp()

    def _forget(self, names: Iterable[str]) -> None:
        """Read these schedules again at the next look."""
        for name in names:
            self._known[name], self._due_at[name] = None, 0.0

    def _one_commit(self) -> AbstractContextManager[None]:
        return self._backend.transaction() if self._backend.joins_writes else nullcontext()
