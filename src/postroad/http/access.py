"""What the routes use: agents with their limits, queues, leased messages, tasks and jobs, and the outbox."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from postroad.agents import Agents
from postroad.arguments import check
from postroad.clock import Clock
from postroad.errors import (
    Conflict,
    InvalidTask,
    NotSupported,
    PostroadError,
    QueueNotFound,
    RateLimited,
    RouteNotFound,
    TooManyPolls,
)
from postroad.http.operations import OperationRun
from postroad.jobs import Jobs
from postroad.journal import TaskState
from postroad.operations import RetryReport, TaskRetries
from postroad.outbox import Outbox, OutboxStatus
from postroad.queues import AckResult, Delivery, Queue
from postroad.settings import Settings, agent_polls, agent_rate
from postroad.tasks import (
    AnyRequestId,
    Schedules,
    TaskFilter,
    TaskHandle,
    TaskList,
    TaskPage,
    TaskProducer,
    TaskRecords,
    TaskRuns,
    WorkerPage,
    current_state,
    worker_page,
)
from postroad.telemetry import recorded
from postroad.views import queue_not_found
from postroad.wiring import Backend

_BURST = 2
_LOOK_AGAIN_SECONDS = 0.25
MAX_BUCKETS = 10_000
MAX_DELIVERIES: Final = 1_000
MAX_BYTES: Final = 32 * 1_048_576


class RateLimits:
    """A token bucket for each caller, which holds `burst` seconds of its rate; a rate of 0 is no limit.

    Of more than 10,000 callers, those that called longest ago are forgotten: their buckets are full again.
    """

    def __init__(self, per_second: int, clock: Clock, *, burst: int = 1, what: str = "requests") -> None:
        self._rate = float(per_second)
        self._most = self._rate * burst
        self._what = what
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str, count: int = 1) -> None:
        """Take `count` from the caller's bucket, or raise `RateLimited` with the seconds until they fit."""
        if not self._rate:
            return
        now = self._clock.monotonic()
        # The last caller moves to the end.
        left, at = self._buckets.pop(caller, (self._most, now))
        left = min(self._most, left + (now - at) * self._rate)
        enough = left >= count
        self._buckets[caller] = (left - count if enough else left, now)
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        if not enough:
            raise RateLimited(
                f"more than {self._rate:.0f} {self._what} per second by one caller",
                retry_after=(count - left) / self._rate,
            )


class AgentAccess:
    """The agents of one server, with limits for each agent."""

    def __init__(self, agents: Agents, clock: Clock) -> None:
        self.agents = agents
        self._rates = RateLimits(agent_rate(), clock, burst=_BURST, what="events")
        self._most_polls = agent_polls()
        self._polls: Counter[str] = Counter()

    def take(self, agent_ids: Iterable[str]) -> None:
        """Count the events of each agent; raise `RateLimited` before any is accepted."""
        for agent_id, count in Counter(agent_ids).items():
            self._rates.take(agent_id, count)

    def begin_waiting(self, agent_id: str) -> None:
        """Count a poll or stream of the agent until `end_waiting`; raise `TooManyPolls` if it has too many."""
        if self._polls[agent_id] >= self._most_polls:
            raise TooManyPolls(f"{self._most_polls} polls and streams wait for this agent, which is the limit")
        self._polls[agent_id] += 1

    def end_waiting(self, agent_id: str) -> None:
        """Stop counting a poll or stream of the agent."""
        self._polls[agent_id] -= 1
        if not self._polls[agent_id]:
            del self._polls[agent_id]


class LeasedMessages:
    """The newest deliveries, by receipt.

    A store such as SQS rejects by sending a copy to the dead letters, but a caller gives only the receipt.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deliveries: dict[str, Delivery] = {}
        self._bytes = 0

    def remember(self, queue: Queue, leased: Sequence[Delivery]) -> None:
        """Keep what was leased from the queue, unless the receipts are enough to reject it."""
        if queue.traits.atomic_reject:
            return
        with self._lock:
            for delivery in leased:
                self._deliveries[delivery.receipt] = delivery
                self._bytes += len(delivery.body)
            while len(self._deliveries) > MAX_DELIVERIES or self._bytes > MAX_BYTES:
                oldest = self._deliveries.pop(next(iter(self._deliveries)))
                self._bytes -= len(oldest.body)

    def reject(self, queue: Queue, held: Sequence[Delivery], *, reason: str, error: str | None) -> list[AckResult]:
        """Send the messages of these receipts to the dead letters; one that is not remembered stays where it is."""
        if queue.traits.atomic_reject:
            return queue.reject(held, reason=reason, error=error)
        with self._lock:
            known = {each.receipt: self._deliveries[each.receipt] for each in held if each.receipt in self._deliveries}
        results = queue.reject(list(known.values()), reason=reason, error=error)
        by_receipt = dict(zip(known, results, strict=True))
        unknown = NotSupported(
            "this server no longer has the message of the receipt, and the store cannot reject it without",
            remedy="Release it with the error, or reject it soon after the lease, through the server that leased it.",
        )
        return [by_receipt.get(each.receipt) or AckResult(False, unknown) for each in held]


class OpenQueues:
    """The queues that messages are sent to, looked up once in a quarter of a second instead of by every request.

    Other settings of a queue count from then on. A body above the queue's limit is too large over HTTP; it is not
    stored as a blob.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._open: dict[str, Queue] = {}
        self._opened_at = float("-inf")

    def queue(self, name: str) -> Queue:
        """Return the queue of this name, or raise `QueueNotFound` with the nearest name that exists."""
        now = self._clock.monotonic()
        if now - self._opened_at >= _LOOK_AGAIN_SECONDS:
            self._open, self._opened_at = {}, now
        found = self._open.get(name)
        return self.again(name) if found is None else found

    def again(self, name: str) -> Queue:
        """Look the queue up now: it may have been deleted, or made again."""
        try:
            queue = self._open[name] = self._backend.queue(name, overflow="fail")
        except QueueNotFound as error:
            self._open.pop(name, None)
            raise queue_not_found(self._backend, name) from error
        return queue


class WorkAccess:
    """The tasks and jobs of the tenant that the settings name."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings

    @cached_property
    def tasks(self) -> TaskProducer:
        """Submits tasks."""
        return TaskProducer(self._backend, tenant_id=self._settings.tenant, app=self._settings.app)

    def task_state(self, request_id: str, at: int | None = None) -> TaskState | None:
        """Return the state of a task, now or at a time in milliseconds."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        journal, records = self._backend.journal(), TaskRecords(self._backend)
        return current_state(journal, records, self._settings.tenant, request_id, at)

    @property
    def runs(self) -> TaskRuns:
        """Waits for the ends of tasks."""
        return TaskRuns(self._backend.journal(), TaskRecords(self._backend), self._settings.tenant)

    def task_page(self, wanted: TaskFilter, *, limit: int, cursor: str | None) -> TaskPage:
        """Return tasks, newest first."""
        return TaskList(self._backend, tenant=self._settings.tenant).page(wanted, limit=limit, cursor=cursor)

    def retry_task(self, request_id: str, *, actor: str) -> TaskHandle[object]:
        """Run a failed or cancelled task again, with an audit record."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        with recorded(self._backend.audit_log(), "task.retry", request_id, {}, actor=actor) as done:
            handle = self._retries.retry(request_id)
            done["run"] = handle.run
        return handle

    def cancel_task(self, request_id: str, *, actor: str) -> TaskState | None:
        """Cancel a task, with an audit record, and return its state; raise `Conflict` if it had ended."""
        check(request_id, AnyRequestId, "requestId", InvalidTask)
        with recorded(self._backend.audit_log(), "task.cancel", request_id, {}, actor=actor):
            if not self.tasks.cancel(request_id):
                raise Conflict(f'task "{request_id}" had ended already')
        return self.task_state(request_id)

    def retry_tasks(self, run: OperationRun) -> Mapping[str, Any]:
        """Retry the tasks that an operation names; a server that continues it does what is left."""
        given = dict(run.params)
        limit, rate, reason = given.pop("limit"), given.pop("rate"), given.pop("reason")
        left = None if limit is None else max(0, limit - run.moved_before)
        report = RetryReport(run_id=run.id, status="limit", matched=0)
        if left != 0:
            report = self._retries.retry_all(
                TaskFilter(**given),
                limit=left,
                rate=rate,
                reason=reason,
                actor=run.actor,
                run_id=run.id,
                progress=lambda so_far: run.count(so_far.retried, so_far.matched),
                stop=run.stop,
            )
        run.count(report.retried, report.matched)
        return dict(msgspec.to_builtins(report))

    @property
    def _retries(self) -> TaskRetries:
        return TaskRetries(self._backend, tenant=self._settings.tenant, app=self._settings.app)

    def worker_page(self, *, limit: int, after: str | None) -> WorkerPage:
        """Return the workers that were seen within the last hour, by id."""
        backend = self._backend
        return worker_page(backend.items(), backend.clock, self._settings.tenant, limit=limit, after=after)

    @cached_property
    def schedules(self) -> Schedules:
        """Lists, pauses, resumes and runs schedules."""
        return Schedules(self._backend, tenant_id=self._settings.tenant, app=self._settings.app)

    @cached_property
    def jobs(self) -> Jobs:
        """Submits, extends, resumes, cancels and shows jobs."""
        return Jobs(self._backend, tenant_id=self._settings.tenant, app=self._settings.app)


class OutboxAccess:
    """The outbox of this server, opened when it is first used."""

    def __init__(self, settings: Settings) -> None:
        self._dsn = settings.outbox_dsn

    @property
    def is_set(self) -> bool:
        """Whether the settings name an outbox."""
        return self._dsn is not None

    @cached_property
    def outbox(self) -> Outbox:
        """The outbox; raises `RouteNotFound` if the settings name none."""
        if self._dsn is None:
            raise RouteNotFound(
                "no outbox is set", remedy="Set dsn in the table [outbox] of postroad.toml, or POSTROAD_OUTBOX_DSN."
            )
        return Outbox.open(self._dsn)

    def status(self) -> OutboxStatus | str | None:
        """Return what the outbox holds; a text says why it cannot be read, None that there is none."""
        if not self.is_set:
            return None
        try:
            return self.outbox.status()
        except PostroadError as error:
            return str(error)

    def close(self) -> None:
        """Close its connections."""
        if "outbox" in self.__dict__:
            self.outbox.close()
