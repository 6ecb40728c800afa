"""Wake-ups: a word to the dispatchers of jobs that a task has ended. None is needed, each saves time."""

from __future__ import annotations

from typing import Self

import msgspec

from postroad.errors import InvalidMessage, PostroadError
from postroad.queues import Delivery, OutgoingMessage, Queue
from postroad.tasks.grounds import Ground
from postroad.tasks.leases import Lease
from postroad.tasks.telling import tell


class WakeUp(msgspec.Struct, frozen=True, rename="camel"):
    """A task of a job is in this state: it ended, or is pending again."""

    tenant_id: str
    job_id: str
    task_id: str
    state: str

    @classmethod
    def read(cls, delivery: Delivery) -> Self:
        """The wake-up of a delivery, or `InvalidMessage`."""
        try:
            return msgspec.json.decode(delivery.body, type=cls)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidMessage(f"the message is no wake-up: {error}") from error


class Bells:
    """Rings for dispatchers, on the queue beside the one that a task was sent to."""

    def __init__(self, backend: Ground) -> None:
        self._backend = backend
        self._queues: dict[str, Queue] = {}

    def ring(self, tenant: str, lease: Lease, *, state: str) -> None:
        """Tell dispatchers the state of a task when it is a job's; a failure is made good by their looks."""
        if lease.job_id is None or lease.task_id is None or not lease.queue:
            return
        wake_up = WakeUp(tenant, lease.job_id, lease.task_id, state)
        try:
            self._queue(lease.queue).send([OutgoingMessage(msgspec.json.encode(wake_up))])
        except PostroadError as error:
            tell("job_wake_failed", job_id=lease.job_id, error=str(error))

    def _queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = self._backend.queue(f"{self._backend.stage_prefix}{name}-dispatch")
        return self._queues[name]
