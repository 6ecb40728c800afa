"""The dispatcher of jobs: it handles the wake-ups of ended tasks, and looks at open jobs without wake-ups, too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

from postroad.errors import InvalidMessage, PostroadError
from postroad.jobs.coordinator import DispatchResult, JobCoordinator
from postroad.journal import COMPLETED, EVENT_TO_STATE, TERMINAL, JournalEvent, Overflow
from postroad.ports import Store
from postroad.queues import Delivery, Queue
from postroad.settings import load
from postroad.tasks import (
    DeadLetterHandler,
    Reconciler,
    ReconcilerLease,
    Role,
    TaskEntry,
    WakeUp,
    log_event,
    open_queue,
    tenant_and_app,
    wants_events,
)

if TYPE_CHECKING:
    from postroad.tasks import EventPublisher


# After so many receives a look at all open jobs has done what the wake-up asks for.
_MOST_WAKINGS = 6


class JobDispatcher:
    """Advances jobs. Several may run at once: each task is begun once per run, each job is completed once.

    Args:
        backend: The store that holds jobs and tasks, as `connect()` returns it.
        queue: The queue of the tasks; its wake-ups are received from `{queue}-dispatch`.
        tenant_id: The tenant whose jobs `dispatch` and `reconcile` examine; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.
        publish_events: Whether to publish the ends of tasks and jobs on the bus `tasks`; by default as the setting
            `task_events` says, which is off.

    Example:
        while True:
            dispatcher.run_once(wait=20)
    """

    def __init__(
        self,
        backend: Store,
        *,
        queue: str = "tasks",
        tenant_id: str | None = None,
        app: str | None = None,
        publish_events: bool | None = None,
    ) -> None:
        self._backend = backend
        self._queue_name = queue
        self._tenant, self._app = tenant_and_app(tenant_id, app)
        self._overflow = Overflow(backend.blobs())
        self._coordinator = cache(lambda tenant: JobCoordinator(backend, queue=queue, tenant=tenant, app=self._app))
        self._publisher: EventPublisher | None = None
        if wants_events(publish_events):
            # A dispatcher that publishes nothing does not import the bus.
            from postroad.tasks.event_publisher import EventPublisher

            self._publisher = EventPublisher(backend, tenant=self._tenant)

    def handle(self, event: JournalEvent) -> DispatchResult:
        """Do what follows from `event`, the end of a task, even if the journal's index does not show it yet."""
        job_id, task_id = event.properties.get("jobId"), event.properties.get("taskId")
        if event.event_type not in TERMINAL or job_id is None or task_id is None:
            return DispatchResult()
        output = None
        if event.event_type == COMPLETED:
            # An event that comes directly from a bus may have its output in a blob.
            output = {"output": self._overflow.unpack(event).properties.get("output")}
        state = EVENT_TO_STATE[event.event_type]
        result = self._coordinator(event.tenant_id).advance(job_id, task_id, state=state, output=output)
        self._publish_events()
        return result

    def run_once(self, *, wait: float = 0.0) -> int:
        """Handle the wake-ups in the queue, after at most `wait` seconds; return their number."""
        deliveries = self._queue.receive(max_messages=10, wait=wait)
        for delivery in deliveries:
            self._wake(delivery)
        self._publish_events()
        return len(deliveries)

    def dispatch(self, job_id: str) -> DispatchResult:
        """Examine the whole job `job_id` and advance it as far as possible."""
        result = self._coordinator(self._tenant).dispatch(job_id)
        self._publish_events()
        return result

    def reconcile(self) -> int:
        """Advance every open job; return how many tasks were begun, jobs completed and failures recorded."""
        coordinator = self._coordinator(self._tenant)
        moved = 0
        for job_id in list(coordinator.jobs.open_jobs()):
            try:
                result = coordinator.dispatch(job_id)
            except Exception as error:
                # An error of one job must not stop the others.
                log_event("job_dispatch_failed", job_id=job_id, error=error)
                continue
            moved += len(result.dispatched) + result.completed + (result.failed_task is not None)
        self._publish_events()
        return moved

    def _publish_events(self) -> None:
        """Publish the recorded events if that is configured; after an error they are published the next time."""
        if self._publisher is None:
            return
        try:
            self._publisher.run_once()
        except Exception as error:
            # Jobs advance even if their events cannot be published.
            log_event("worker_role_failed", role="events", error=error)

    def _wake(self, delivery: Delivery) -> None:
        try:
            wake_up = WakeUp.read(delivery)
        except InvalidMessage:
            # Nothing is lost: jobs advance without wake-ups, too.
            self._queue.ack([delivery])
            return
        try:
            self._coordinator(wake_up.tenant_id).advance(wake_up.job_id, wake_up.task_id, state=wake_up.state)
        except Exception as error:
            log_event("job_dispatch_failed", job_id=wake_up.job_id, error=error)
            if delivery.receive_count < _MOST_WAKINGS:
                with suppress(PostroadError):
                    self._queue.release([delivery], after=2.0 ** (delivery.receive_count - 1), error=str(error))
                return
        self._queue.ack([delivery])

    @cached_property
    def _queue(self) -> Queue:
        # Opened at its first use: a function behind EventBridge does not need it and has no rights to it.
        return open_queue(self._backend, self._queue_name, ending="-dispatch")


ROLES: Final = ("dispatcher", "dlq", "reconciler", "scheduler", "health", "events")


_RECONCILE_SECONDS, _WAKE_UP_WAIT = 30.0, 0.5
# Far away each look is a request that costs money: an idle worker makes at most ten a minute.
_FAR_RECONCILE_SECONDS, _FAR_WAKE_UP_WAIT = 75.0, 20.0


def worker_roles(
    backend: Store,
    *,
    queue: str | Sequence[str] = "tasks",
    tenant_id: str | None = None,
    app: str | None = None,
    roles: Collection[str] | None = None,
    tasks: Callable[[], Mapping[str, TaskEntry] | None] | None = None,
) -> list[Role]:
    """Return the roles of a worker; by default all, `events` only if the settings say so, `health` only off AWS.

    `tasks` returns those whose schedules are run, by default those of `@task` in this process. A worker of several
    queues has the roles `dispatcher`, `dlq` and `reconciler` once for each, and the others once.
    """
    found = []
    queues = [queue] if isinstance(queue, str) else list(queue)
    if roles is None:
        # On AWS a function checks the health of tasks.
        off = {"health"} if backend.stage_prefix else set[str]()
        roles = set(ROLES if load().task_events else ROLES[:-1]) - off
    if "health" in roles:
        from postroad.tasks import health_role

        found.append(health_role(backend, tenant_id=tenant_id, app=app))
    if "events" in roles:
        from postroad.tasks.event_publisher import EventPublisher

        found.append(EventPublisher(backend, tenant=tenant_and_app(tenant_id, app)[0]).role())
    if "scheduler" in roles:
        from postroad.tasks import Scheduler

        found.append(Scheduler(backend, queue=queues[0], tenant_id=tenant_id, app=app, tasks=tasks).role())
    for name in queues:
        found += _queue_roles(backend, name, tenant_id, app, roles)
    return found


def _queue_roles(
    backend: Store, queue: str, tenant_id: str | None, app: str | None, roles: Collection[str]
) -> list[Role]:
    """Return the roles that look at one queue. Where looks cost requests, one worker of the tenant reconciles."""
    found = []
    is_near = open_queue(backend, queue).traits.short_waits
    every = _RECONCILE_SECONDS if is_near else _FAR_RECONCILE_SECONDS
    wait = _WAKE_UP_WAIT if is_near else _FAR_WAKE_UP_WAIT
    if "dlq" in roles:
        found.append(DeadLetterHandler(backend, queue=queue, tenant_id=tenant_id, app=app).role())
    looks: dict[str, Callable[[], int]] = {}
    if "reconciler" in roles:
        looks["reconciler"] = Reconciler(backend, queue=queue, tenant_id=tenant_id, app=app).run_once
    if "dispatcher" in roles:
        dispatcher = JobDispatcher(backend, queue=queue, tenant_id=tenant_id, app=app, publish_events=False)
        looks["jobs"] = dispatcher.reconcile
        found.append(Role("dispatcher", 0.0, lambda: dispatcher.run_once(wait=wait)))
    if is_near:
        return found + [Role(name, every, look) for name, look in looks.items()]
    if looks:
        tenant = tenant_and_app(tenant_id, app)[0]
        lease = ReconcilerLease(backend, tenant=tenant, queue=queue, seconds=2 * every)
        found.append(Role("reconciler", every, lambda: _each(looks.values()) if lease.hold() else 0, lease.give_up))
    return found


def _each(looks: Iterable[Callable[[], int]]) -> int:
    """Take every look, then raise the first error."""
    done, errors = 0, list[Exception]()
    for look in looks:
        try:
            done += look()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return done
