"""The duties beside running tasks: dead letters, what was not sent, and jobs that wait to be brought forward."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from postroad.jobs.dispatcher import JobDispatcher
from postroad.tasks.dead_letters import DeadLetterHandler
from postroad.tasks.grounds import Ground
from postroad.tasks.reconciling import Reconciler
from postroad.tasks.roles import Role

ROLES: Final = ("dispatcher", "dlq", "reconciler")
_DEAD_LETTERS_EVERY = 5.0
_RECONCILE_EVERY = 30.0
_WAKE_UP_WAIT = 0.5


def duties(
    backend: Ground,
    *,
    queue: str = "tasks",
    tenant_id: str | None = None,
    app: str | None = None,
    roles: Collection[str] = ROLES,
) -> list[Role]:
    """What the roles have to do, each as often as it is due."""
    found = []
    if "dlq" in roles:
        letters = DeadLetterHandler(backend, queue=queue, tenant_id=tenant_id, app=app)
        found.append(Role("dlq", _DEAD_LETTERS_EVERY, letters.run_once))
    if "reconciler" in roles:
        reconciler = Reconciler(backend, queue=queue, tenant_id=tenant_id, app=app)
        found.append(Role("reconciler", _RECONCILE_EVERY, reconciler.run_once))
    if "dispatcher" in roles:
        dispatcher = JobDispatcher(backend, queue=queue, tenant_id=tenant_id, app=app)
        found.append(Role("jobs", _RECONCILE_EVERY, dispatcher.reconcile))
        found.append(Role("dispatcher", 0.0, lambda: dispatcher.run_once(wait=_WAKE_UP_WAIT)))
    return found
