"""The roles of a worker beside running tasks: dead letters, what was not sent, jobs, and published events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from postroad.jobs.dispatcher import JobDispatcher
from postroad.settings import load
from postroad.tasks.dead_letters import DeadLetterHandler
from postroad.tasks.grounds import Ground, party
from postroad.tasks.queues import open_queue
from postroad.tasks.reconciling import Reconciler, ReconcilerLease
from postroad.tasks.roles import Role

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


def duties(
    backend: Ground,
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
    tenant = party(tenant_id, app).tenant_id
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
