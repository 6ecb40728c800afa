"""The dispatcher: is woken when a task of a job ends, and looks at open jobs even when nobody wakes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from postroad.errors import InvalidMessage, PostroadError
from postroad.jobs.mover import DispatchResult, Mover
from postroad.journal import COMPLETED, EVENT_TO_STATE, TERMINAL, JournalEvent, Overflow
from postroad.ports import Store
from postroad.queues import Delivery, Queue
from postroad.settings import load
from postroad.tasks import (
    DeadLetterHandler,
    Reconciler,
    ReconcilerLease,
    Role,
    WakeUp,
    log_event,
    open_queue,
    tenant_and_app,
    wants_events,
)

if TYPE_CHECKING:
    from postroad.tasks import EventPublisher


# After so many a look at all open jobs has long done what a wake-up asks for.
_MOST_WAKINGS = 6


class JobDispatcher:
    """Brings jobs forward. Any number may work at once: each task is begun once per run, each job completed once.

    Args:
        backend: The store that holds jobs and tasks.
        queue: The queue of the tasks; its wake-ups are received from `{queue}-dispatch`.
        tenant_id: Whose jobs `dispatch` and `reconcile` look at; by default what the settings say.
        app: In whose name events are recorded; by default what the settings say.
        publish_events: Whether to publish the ends of tasks and jobs on the bus `tasks`; by default as the setting
            `task_events` says, which is off.
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
        who = tenant_and_app(tenant_id, app)
        self._app = who.app
        self._tenant = who.tenant_id
        self._overflow = Overflow(backend.blobs())
        self._movers: dict[str, Mover] = {}
        self._publisher = _publisher(backend, who.tenant_id) if wants_events(publish_events) else None

    def handle(self, event: JournalEvent) -> DispatchResult:
        """Do what hangs on the end of a task; it counts even where the journal's index does not show it yet."""
        job_id, task_id = event.properties.get("jobId"), event.properties.get("taskId")
        if event.event_type not in TERMINAL or job_id is None or task_id is None:
            return DispatchResult()
        output = None
        if event.event_type == COMPLETED:
            # An event that comes straight from a bus may have left its output in a blob.
            output = {"output": self._overflow.unpack(event).properties.get("output")}
        state = EVENT_TO_STATE[event.event_type]
        result = self._mover(event.tenant_id).advance(job_id, task_id, state=state, output=output)
        self._publish_events()
        return result

    def run_once(self, *, wait: float = 0.0) -> int:
        """Handle the wake-ups that are there; how many."""
        deliveries = self._queue.receive(max_messages=10, wait=wait)
        for delivery in deliveries:
            self._wake(delivery)
        self._publish_events()
        return len(deliveries)

    def dispatch(self, job_id: str) -> DispatchResult:
        """Look at the whole job and bring it forward as far as it goes."""
        result = self._mover(self._tenant).dispatch(job_id)
        self._publish_events()
        return result

    def reconcile(self) -> int:
        """Bring every open job forward, wake-up or not; how many tasks were begun and jobs finished or told failed."""
        mover = self._mover(self._tenant)
        moved = 0
        for job_id in list(mover.jobs.open_jobs()):
            try:
                result = mover.dispatch(job_id)
            except Exception as error:
                # Whatever is wrong with one job, the others go on.
                log_event("job_dispatch_failed", job_id=job_id, error=error)
                continue
            moved += len(result.dispatched) + result.completed + (result.failed_task is not None)
        self._publish_events()
        return moved

    def _publish_events(self) -> None:
        """Publish what was recorded, if that is wanted; what fails now is published the next time."""
        if self._publisher is None:
            return
        try:
            self._publisher.run_once()
        except Exception as error:
            # Jobs go forward whether anybody hears of it or not.
            log_event("worker_role_failed", role="events", error=error)

    def _wake(self, delivery: Delivery) -> None:
        try:
            wake_up = WakeUp.read(delivery)
        except InvalidMessage:
            # Nothing is lost with it: jobs go forward without wake-ups too.
            self._queue.ack([delivery])
            return
        try:
            self._mover(wake_up.tenant_id).advance(wake_up.job_id, wake_up.task_id, state=wake_up.state)
        except Exception as error:
            log_event("job_dispatch_failed", job_id=wake_up.job_id, error=error)
            if delivery.receive_count < _MOST_WAKINGS:
                with suppress(PostroadError):
                    self._queue.release([delivery], after=2.0 ** (delivery.receive_count - 1), error=str(error))
                return
        self._queue.ack([delivery])

    @cached_property
    def _queue(self) -> Queue:
        # Opened when it is first looked at: a function behind EventBridge has no rights on it and no need of it.
        return open_queue(self._backend, self._queue_name, ending="-dispatch")

    def _mover(self, tenant: str) -> Mover:
        mover = self._movers.get(tenant)
        if mover is None:
            mover = Mover(self._backend, queue=self._queue_name, tenant=tenant, app=self._app)
            self._movers[tenant] = mover
        return mover


def _publisher(backend: Store, tenant: str) -> EventPublisher:
    # A dispatcher that publishes nothing does not pay for the import of the bus.
    from postroad.tasks.event_publisher import EventPublisher

    return EventPublisher(backend, tenant=tenant)


ROLES: Final = ("dispatcher", "dlq", "reconciler", "events")


@dataclass(frozen=True, slots=True)
class _Pace:
    """How often each duty is done, in seconds."""

    dead_letters: float
    reconcile: float
    wake_up_wait: float


_NEAR: Final = _Pace(dead_letters=5.0, reconcile=30.0, wake_up_wait=0.5)
# Each look is a request that costs money: an idle worker makes at most ten of them a minute.
_FAR: Final = _Pace(dead_letters=60.0, reconcile=75.0, wake_up_wait=20.0)


def worker_roles(
    backend: Store,
    *,
    queue: str = "tasks",
    tenant_id: str | None = None,
    app: str | None = None,
    roles: Collection[str] | None = None,
) -> list[Role]:
    """What the roles have to do, each as often as it is due; by default all, `events` if the settings say so.

    Where looking costs requests, one worker of the tenant looks for what nobody was woken for, by a lease.
    """
    found = []
    tenant = tenant_and_app(tenant_id, app).tenant_id
    if roles is None:
        roles = ROLES if load().task_events else ROLES[:-1]
    if "events" in roles:
        from postroad.tasks.event_publisher import EventPublisher

        found.append(EventPublisher(backend, tenant=tenant).role())
    is_near = open_queue(backend, queue).traits.short_waits
    pace = _NEAR if is_near else _FAR
    if "dlq" in roles:
        letters = DeadLetterHandler(backend, queue=queue, tenant_id=tenant_id, app=app)
        found.append(Role("dlq", pace.dead_letters, letters.run_once))
    looks: dict[str, Callable[[], int]] = {}
    if "reconciler" in roles:
        looks["reconciler"] = Reconciler(backend, queue=queue, tenant_id=tenant_id, app=app).run_once
    if "dispatcher" in roles:
        dispatcher = JobDispatcher(backend, queue=queue, tenant_id=tenant_id, app=app, publish_events=False)
        looks["jobs"] = dispatcher.reconcile
        found.append(Role("dispatcher", 0.0, lambda: dispatcher.run_once(wait=pace.wake_up_wait)))
    if is_near:
        found += [Role(name, pace.reconcile, look) for name, look in looks.items()]
    elif looks:
        lease = ReconcilerLease(backend, tenant=tenant, queue=queue, seconds=2 * pace.reconcile)

        def look_if_mine() -> int:
            return _each(looks.values()) if lease.hold() else 0

        found.append(Role("reconciler", pace.reconcile, look_if_mine, lease.give_up))
    return found


def _each(looks: Iterable[Callable[[], int]]) -> int:
    """Take every look; the first error is raised when all were taken."""
    done, errors = 0, list[Exception]()
    for look in looks:
        try:
            done += look()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return done
