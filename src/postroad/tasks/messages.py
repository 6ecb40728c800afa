"""What tasks send, record and log: the message of a run, the queues it goes to, the events of a task, and log lines."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

import msgspec

from postroad.arguments import text
from postroad.clock import Clock
from postroad.errors import InvalidMessage, InvalidTask, QueueNotFound, describe
from postroad.events import checked_bytes, is_strict, sendable, unsendable
from postroad.items import Item, Items
from postroad.journal import JournalEvent, NestedId, Number, TimeoutMs, is_simple, own_event
from postroad.ports import Store
from postroad.queues import MAX_RETENTION, Delivery, OutgoingMessage, PeekedMessage, Queue, QueueSpec, legible
from postroad.settings import load
from postroad.telemetry import get_logger, tracing

# A task of a job is called {jobId}.{taskId}; a submitted id has no dot, so the two never collide.
ANY_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_LEVELS_OF_INPUT = 60
_REMEDY = "Use 1 to 256 letters, digits, '_' or '-'."
RequestId = text(r"[A-Za-z0-9_-]{1,256}", "a request id", remedy=_REMEDY)
AnyRequestId = text(ANY_REQUEST_ID.pattern, "a request id", remedy=_REMEDY)
_TENANT = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
_MAX_BYTES = 104_857_600


def check_input(input: object) -> dict[str, Any]:
    """Return the input, a JSON object; None is an empty object."""
    if input is None:
        return {}
    if not isinstance(input, dict):
        raise InvalidTask(
            f"input: {type(input).__name__} is not a JSON object", field="input", remedy="Pass a dict of JSON values."
        )
    if is_simple(input, _LEVELS_OF_INPUT + 1):
        # Most inputs are, and then only a lone surrogate cannot be encoded; what follows says where it is.
        with contextlib.suppress(ValueError, OverflowError):
            msgspec.json.encode(input)
            return input
    try:
        json.dumps(input, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unsendable(input, error) from error
    if not all(isinstance(key, str) for key in input) or not is_strict(input.values(), _LEVELS_OF_INPUT):
        raise _unsendable(input, TypeError("a key is not text"))
    return input


def _unsendable(input: object, why: Exception) -> InvalidTask:
    found: InvalidMessage = unsendable(input, path="input", levels=_LEVELS_OF_INPUT + 1, why=why, plain=True)
    return InvalidTask(found.message, field=found.field, remedy="Pass JSON values only; nothing was submitted.")


class TaskMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One run of a task, as it is sent to the workers."""

    request_id: Annotated[str, msgspec.Meta(pattern=rf"^{ANY_REQUEST_ID.pattern}\Z")]
    name: str
    input: dict[str, Any] = {}
    run: Number = 1
    timeout_ms: TimeoutMs | None = None
    task_id: NestedId | None = None
    job_id: NestedId | None = None
    dependency_outputs: dict[str, Any] | None = None

    def document(self, *, attempt: int, token: int) -> bytes:
        """Return the JSON document that the task reads."""
        return msgspec.json.encode(
            {
                "requestId": self.request_id,
                "taskId": self.task_id,
                "jobId": self.job_id,
                "name": self.name,
                "run": self.run,
                "attempt": attempt,
                "token": token,
                "input": self.input,
                "dependencyOutputs": self.dependency_outputs or {},
            }
        )

    def task(self, tenant: str) -> TaskId:
        return TaskId(
            tenant_id=tenant, request_id=self.request_id, run=self.run, job_id=self.job_id, task_id=self.task_id
        )


class _Named(msgspec.Struct, rename="camel"):
    request_id: str
    run: Number = 1


_decode = msgspec.json.Decoder(TaskMessage).decode


def outgoing(
    message: TaskMessage, tenant: str, *, delay: float = 0.0, traceparent: str | None = None
) -> OutgoingMessage:
    """Return the message as a queue accepts it; the trace of its submission goes with it."""
    body = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
    attributes = {"requestId": message.request_id, "tenantId": tenant}
    if traceparent is not None:
        attributes[tracing.TRACE_ATTRIBUTE] = traceparent
    return OutgoingMessage(sendable(msgspec.json.encode(body)), attributes, delay=delay)


def read(delivery: Delivery | PeekedMessage) -> TaskMessage:
    """Return the message of a delivery, or raise `InvalidMessage`."""
    try:
        return _decode(checked_bytes(delivery.body, _MAX_BYTES))
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"the message is not a task: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"the message is not a task: {type(error).__name__}") from error


def named_by(delivery: Delivery | PeekedMessage) -> tuple[str, int] | None:
    """Return the request id and run that an unreadable message still names, or None."""
    try:
        found = msgspec.json.decode(checked_bytes(delivery.body, _MAX_BYTES), type=_Named)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidMessage):
        return None
    return None if ANY_REQUEST_ID.fullmatch(found.request_id) is None else (found.request_id, found.run)


def tenant_of(delivery: Delivery | PeekedMessage, default: str) -> str:
    """Return the tenant of the task, or raise `InvalidMessage` if it is not a valid id."""
    tenant = delivery.attributes.get("tenantId", default)
    if _TENANT.fullmatch(tenant) is None:
        raise InvalidMessage(f"tenantId: {tenant[:100]!r} is not the id of a tenant", field="tenantId")
    return tenant


def wants_events(publish_events: bool | None) -> bool:
    """Return whether events are published; None means as the settings say."""
    return load().task_events if publish_events is None else publish_events


def tenant_and_app(tenant_id: str | None, app: str | None) -> tuple[str, str]:
    """Return the tenant and the app; those of the settings where None is given."""
    if tenant_id is not None and app is not None:
        return tenant_id, app
    settings = load()
    return settings.tenant if tenant_id is None else tenant_id, settings.app if app is None else app


def queue_specs(queue: str = "tasks") -> tuple[QueueSpec, QueueSpec, QueueSpec]:
    """Return the queues for dead letters, tasks and wake-ups of a tasks queue, in the order to create them."""
    dead = f"{queue}-dlq"
    return (
        QueueSpec(dead, retention=MAX_RETENTION, redrive_allow=(queue,)),
        QueueSpec(queue, visibility=900, retention=345_600, receive_wait=20, dead_letter=dead, max_receives=100),
        QueueSpec(f"{queue}-dispatch"),
    )


def ensure_queues(backend: Store, queue: str = "tasks") -> None:
    """Create the queues of tasks that are missing.

    Args:
        backend: The store, as `connect()` returns it.
        queue: The name of the tasks queue; on AWS without the stage.

    Raises:
        QueueExists: A queue exists with other settings; the error names the differences.

    Example:
        ensure_queues(backend, queue="reports")
    """
    for spec in queue_specs(backend.stage_prefix + queue):
        backend.create_queue(spec)


def open_queue(backend: Store, queue: str, *, ending: str = "") -> Queue:
    """Return a queue of tasks; `ending` is `-dlq` or `-dispatch` for those beside it.

    Off AWS the queues are created first; on AWS they must exist, or `QueueNotFound` is raised.
    """
    if not backend.stage_prefix:
        ensure_queues(backend, queue)
    try:
        return backend.queue(f"{backend.stage_prefix}{queue}{ending}")
    except QueueNotFound as error:
        option = "" if queue == "tasks" else f" --queue {queue}"
        raise QueueNotFound(
            error.message,
            field=error.field,
            remedy=f"Create the queues of tasks and dead letters: `postroad task init{option}` or the topology.",
        ) from error


WITH_ITS_JOB: Final = "the job was cancelled"
"""The reason of a task that ends because its job does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskId:
    """One run of one task of a tenant."""

    tenant_id: str
    request_id: str
    run: int
    job_id: str | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFactory:
    """Makes the events of tasks for one component, its `origin`."""

    app: str
    environment: str
    origin: str
    clock: Clock
    worker_id: str | None = None

    def event(self, event_type: str, task: TaskId, *, token: int | None = None, **properties: Any) -> JournalEvent:
        ids = {"requestId": task.request_id, "jobId": task.job_id, "taskId": task.task_id, "run": task.run}
        return self.record(event_type, task.tenant_id, task.request_id, **ids, token=token, **properties)

    def record(self, event_type: str, tenant_id: str, entity_id: str, **properties: Any) -> JournalEvent:
        """Return an event of now; properties that are None are left out."""
        context = {"source": "system", "environment": self.environment, "origin": self.origin}
        if self.worker_id is not None:
            context["workerId"] = self.worker_id
        return own_event(
            event_type,
            tenant_id=tenant_id,
            entity_id=entity_id,
            app=self.app,
            context=context,
            properties={name: value for name, value in properties.items() if value is not None or name == "output"},
            timestamp=self.now_ms(),
        )

    def now_ms(self) -> int:
        return int(self.clock.now().timestamp() * 1_000)


def scan(items: Items, prefix: str, *, limit: int) -> Iterator[Item]:
    """Yield all items whose key begins with the prefix, read `limit` at a time."""
    cursor = None
    while True:
        page = items.scan(prefix, limit=limit, cursor=cursor)
        yield from page.items
        if (cursor := page.cursor) is None:
            return


_standard = logging.getLogger("postroad.tasks")
_LEVELS = {
    "task_traceback": logging.DEBUG,
    **dict.fromkeys(("task_started", "task_completed", "task_interrupted", "task_resent"), logging.INFO),
    **dict.fromkeys(("worker_started", "worker_stopped", "worker_role_recovered"), logging.INFO),
    **dict.fromkeys(("task_receive_recovered", "worker_reloaded"), logging.INFO),
}
"""The levels of log lines that are not warnings."""


def log_event(event: str, **fields: Any) -> None:
    """Count what happened and log it, never with an input or an output.

    An `error` is shown as one line with the place that raised it, without secrets, in 500 characters at most.
    """
    _counter(event).inc()
    level = _LEVELS.get(event, logging.WARNING)
    if _standard.isEnabledFor(level):
        if (error := fields.get("error")) is not None:
            fields["error"] = legible(describe(error) if isinstance(error, BaseException) else error)
        _logger().log(level, event, **fields)


@cache
def _counter(event: str) -> Any:
    return tracing.counter("postroad_task_events_total").labels(event)


@cache
def _logger() -> Any:
    return get_logger("tasks")
