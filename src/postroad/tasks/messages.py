"""The message of a task, and the names and ids that may stand in it."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import msgspec

from postroad.arguments import text
from postroad.errors import InvalidMessage, InvalidTask
from postroad.events import checked_bytes, is_strict, sendable, unsendable
from postroad.journal import NestedId, Number, TimeoutMs
from postroad.queues import Delivery, OutgoingMessage, PeekedMessage

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# A task of a job is called {jobId}.{taskId}; no submitted id has a dot, so that none collide.
ANY_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_LEVELS_OF_INPUT = 60
_REMEDY = "Use 1 to {} letters, digits, '_' or '-'; nothing was submitted."
TaskName = text(NAME.pattern, "the name of a task", remedy=_REMEDY.format(64))
RequestId = text(r"[A-Za-z0-9_-]{1,256}", "a request id", remedy=_REMEDY.format(256))
AnyRequestId = text(ANY_REQUEST_ID.pattern, "a request id", remedy=_REMEDY.format(256))


def check_input(input: object) -> dict[str, Any]:
    """Return the input, a JSON object; None is an empty one."""
    if input is None:
        return {}
    if not isinstance(input, dict):
        raise InvalidTask(
            f"input: {type(input).__name__} is not a JSON object", field="input", remedy="Pass a dict of JSON values."
        )
    try:
        json.dumps(input, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unsendable(input, error) from error
    if not all(isinstance(key, str) for key in input) or not is_strict(input.values(), _LEVELS_OF_INPUT):
        raise _unsendable(input, None)
    return input


def _unsendable(input: object, why: Exception | None) -> InvalidTask:
    reason = why or TypeError("a key is not text")
    found: InvalidMessage = unsendable(input, path="input", levels=_LEVELS_OF_INPUT + 1, why=reason)
    return InvalidTask(found.message, field=found.field, remedy="Pass JSON values only; nothing was submitted.")


_TENANT = re.compile(r"[A-Za-z0-9_.:-]{1,256}")
_MAX_BYTES = 104_857_600


class TaskMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One run of a task, sent to whoever may run it."""

    request_id: Annotated[str, msgspec.Meta(pattern=rf"^{ANY_REQUEST_ID.pattern}\Z")]
    name: str
    input: dict[str, Any] = {}
    run: Number = 1
    timeout_ms: TimeoutMs | None = None
    task_id: NestedId | None = None
    job_id: NestedId | None = None
    dependency_outputs: dict[str, Any] | None = None

    def document(self, *, attempt: int, token: int) -> bytes:
        """What the task reads: one JSON document."""
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


class _Named(msgspec.Struct, rename="camel"):
    request_id: str
    run: Number = 1


_decode = msgspec.json.Decoder(TaskMessage).decode


def outgoing(message: TaskMessage, tenant: str, *, delay: float = 0.0) -> OutgoingMessage:
    """The message as a queue takes it."""
    body = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
    attributes = {"requestId": message.request_id, "tenantId": tenant}
    return OutgoingMessage(sendable(msgspec.json.encode(body)), attributes, delay=delay)


def read(delivery: Delivery | PeekedMessage) -> TaskMessage:
    """The message of a delivery, or `InvalidMessage`."""
    try:
        return _decode(checked_bytes(delivery.body, _MAX_BYTES))
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"the message is no task: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"the message is no task: {type(error).__name__}") from error


def named_by(delivery: Delivery | PeekedMessage) -> tuple[str, int] | None:
    """The request id and run that an unreadable message still names; None when it names no task."""
    try:
        found = msgspec.json.decode(checked_bytes(delivery.body, _MAX_BYTES), type=_Named)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidMessage):
        return None
    if ANY_REQUEST_ID.fullmatch(found.request_id) is None:
        return None
    return found.request_id, found.run


def tenant_of(delivery: Delivery | PeekedMessage, default: str) -> str:
    """The tenant under which the task runs; `InvalidMessage` for what cannot be one."""
    tenant = delivery.attributes.get("tenantId", default)
    if _TENANT.fullmatch(tenant) is None:
        raise InvalidMessage(f"tenantId: {tenant[:100]!r} is not the id of a tenant", field="tenantId")
    return tenant


def is_name(name: str) -> bool:
    """Whether it can be the name of a task."""
    return NAME.fullmatch(name) is not None
