"""What tasks need of a backend: its ports, the tenant and app in whose name they act, and three queues."""

from __future__ import annotations

from dataclasses import dataclass

from postroad.errors import QueueNotFound
from postroad.ports import Store
from postroad.queues import Queue, QueueSpec
from postroad.settings import load


@dataclass(frozen=True, slots=True)
class TenantApp:
    """The tenant and the app in whose name something is done."""

    tenant_id: str
    app: str


def wants_events(publish_events: bool | None) -> bool:
    """Whether events are published: as was told, else as the settings say."""
    return load().task_events if publish_events is None else publish_events


def tenant_and_app(tenant_id: str | None, app: str | None) -> TenantApp:
    """Who was named, else who the settings name."""
    if tenant_id is not None and app is not None:
        return TenantApp(tenant_id, app)
    settings = load()
    return TenantApp(settings.tenant if tenant_id is None else tenant_id, settings.app if app is None else app)


VISIBILITY = 900
RETENTION = 345_600
DEAD_LETTER_RETENTION = 1_209_600
MAX_RECEIVES = 100


def queue_specs(queue: str = "tasks") -> tuple[QueueSpec, QueueSpec, QueueSpec]:
    """The dead letters, the work and the wake-ups of the tasks queue of this name, in the order of their making."""
    dead = f"{queue}-dlq"
    return (
        QueueSpec(dead, retention=DEAD_LETTER_RETENTION, redrive_allow=(queue,)),
        QueueSpec(
            queue,
            visibility=VISIBILITY,
            retention=RETENTION,
            receive_wait=20,
            dead_letter=dead,
            max_receives=MAX_RECEIVES,
        ),
        QueueSpec(f"{queue}-dispatch"),
    )


def ensure_queues(backend: Store, queue: str = "tasks") -> None:
    """Make the queues of tasks where they are missing; `QueueExists` names what differs."""
    for spec in queue_specs(backend.stage_prefix + queue):
        backend.create_queue(spec)


def open_queue(backend: Store, queue: str, *, dead_letters: bool = False) -> Queue:
    """A queue of tasks, made first on a ground of one's own; on AWS only what exists is used."""
    return _opened(backend, queue, "-dlq" if dead_letters else "")


def open_dispatch_queue(backend: Store, queue: str) -> Queue:
    """The queue of wake-ups beside a queue of tasks."""
    return _opened(backend, queue, "-dispatch")


def _opened(backend: Store, queue: str, ending: str) -> Queue:
    if not backend.stage_prefix:
        ensure_queues(backend, queue)
    try:
        return backend.queue(f"{backend.stage_prefix}{queue}{ending}")
    except QueueNotFound as error:
        option = "" if queue == "tasks" else f" --queue {queue}"
        raise QueueNotFound(
            error.message,
            field=error.field,
            remedy=f"Make the queues of tasks with their dead letters: `postroad task init{option}` or the topology.",
        ) from error
