"""Delays that are longer than a queue's: a task that is put off is an item whose key begins with its time."""

from __future__ import annotations

import uuid
from typing import Final

import msgspec

from postroad.blobs import BlobRef
from postroad.errors import InvalidTask
from postroad.ports import Store
from postroad.tasks.messages import TaskMessage

MAX_PUT_OFF: Final = 31_536_000.0
"""The longest delay of a task, in seconds: a year."""
DELAYS: Final = "delays/"
_INLINE_BYTES = 200_000
_PUT_OFF = "DELAYED#"


class PutOff(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A task that waits in an item for its time; a large one has its message in a blob."""

    queue: str
    message: TaskMessage | None = None
    blob: BlobRef | None = None


def put_off(backend: Store, tenant: str, message: TaskMessage, *, queue: str, due_at: int) -> None:
    """Store a run for the role `scheduler`, which sends it when it is due; `due_at` is in milliseconds.

    It is stored before the lease that names the same time. A run whose lease does not is not sent.
    """
    body = msgspec.json.encode(message)
    waits = PutOff(queue=queue, message=message)
    if len(body) > _INLINE_BYTES:
        blobs = backend.blobs()
        if blobs is None:
            raise InvalidTask(
                f"input: {len(body)} bytes cannot be put off for so long without blobs",
                field="input",
                remedy="Configure blobs, pass a reference instead of the data, or use a delay of at most 900 seconds.",
            )
        waits = PutOff(queue=queue, blob=blobs.put(f"{DELAYS}{due_at}/{uuid.uuid4().hex}.json", body))
    backend.items().put(f"{put_off_key(tenant)}{due_at:013d}#{message.request_id}", msgspec.json.encode(waits))


def put_off_key(tenant: str) -> str:
    """Return what the keys of the tenant's tasks that are put off begin with; the time when they are due follows."""
    return f"{tenant}/{_PUT_OFF}"
