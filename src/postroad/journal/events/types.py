"""The types of events that are known, and the check of their properties."""

from __future__ import annotations

import functools
from typing import Any, Final, Union

import msgspec

from postroad.arguments import check
from postroad.errors import InvalidEvent
from postroad.events.refusals import refusal
from postroad.journal.checks import Id, is_id
from postroad.journal.events import health, jobs, tasks
from postroad.journal.events.fields import ID_NAMES, Properties

EVENT_CLASSES: Final[dict[str, type[Properties]]] = {
    "Task Pending": tasks.TaskPending,
    "Task Processing Started": tasks.TaskProcessingStarted,
    "Task Processing Failed": tasks.TaskProcessingFailed,
    "Task Completed": tasks.TaskCompleted,
    "Task Failed": tasks.TaskFailed,
    "Task Timeout": tasks.TaskTimeout,
    "Task Heartbeat": tasks.TaskHeartbeat,
    "Task Interrupted": tasks.TaskInterrupted,
    "Task Cancelled": tasks.TaskCancelled,
    "Job Created": jobs.JobCreated,
    "Job Tasks Added": jobs.JobTasksAdded,
    "Job Completed": jobs.JobCompleted,
    "Job Cancelled": jobs.JobCancelled,
    "Job Failure Detected": jobs.JobFailureDetected,
    "Job Resumed": jobs.JobResumed,
    "Task Health Check": health.TaskHealthCheck,
}
_ENTITY_TYPES: Final = {"Task": "TASK", "Job": "JOB"}


def entity_type_of(event_type: str) -> str | None:
    """The type of the entity that an event of this type is about; None where the type does not tell."""
    return "HEALTH" if event_type == "Task Health Check" else _ENTITY_TYPES.get(event_type.partition(" ")[0])


def check_properties(
    event_type: str, properties: dict[str, Any], *, entity_id: str | None = None, partial: bool = False
) -> None:
    """Refuse wrong or missing properties of a known type. `partial`: some of them are in a blob.

    The entity's id was looked at before, and is the one that most properties repeat."""
    known = EVENT_CLASSES.get(event_type)
    if known is None:
        return
    try:
        msgspec.convert(properties, _part(known) if partial else known)
    except msgspec.ValidationError as error:
        refused = refusal(error, root="properties")
        raise InvalidEvent(refused.message, field=refused.field) from None
    for name in ID_NAMES:
        value = properties.get(name, entity_id)
        # An id that was seen a moment ago is known again.
        fits = value is None or value == entity_id or (isinstance(value, str) and is_id(value))
        if not fits:
            check(value, Id, f"properties.{name}", InvalidEvent)


@functools.cache
def _part(cls: type[Properties]) -> type[msgspec.Struct]:
    """The same properties, of which each may be absent."""
    fields: list[tuple[str, Any, Any]] = [
        (field.encode_name, Union[field.type, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007  # built, not written
        for field in msgspec.structs.fields(cls)
    ]
    return msgspec.defstruct(f"PartOf{cls.__name__}", fields, frozen=True, kw_only=True)
