"""The forms of request bodies; each refuses unknown fields."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from postroad.errors import InvalidInput
from postroad.events import checked_bytes, explained
from postroad.http.tokens import MAX_SECONDS, NAME
from postroad.views import Scope

_AT = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (?:contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)

Seconds = Annotated[float, Meta(ge=0, le=43_200)]
Reason = Annotated[str, Meta(min_length=1, max_length=500)]
Receipts = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4_096)]], Meta(min_length=1, max_length=100)]


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A body without unknown fields."""


class Message(Form, frozen=True):
    """One message to send. Each message is checked alone, so that an invalid one stops no other."""

    body: str
    attributes: dict[str, str] = {}
    group: str | None = None
    dedup_id: str | None = None
    delay: float = 0.0


class Messages(Form, frozen=True):
    """Messages to send, in order."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=100)]


class Lease(Form, frozen=True):
    """How many messages to lease, for how long, and how long to wait for the first."""

    max_messages: Annotated[int, Meta(ge=1, le=100)] = 10
    wait: Annotated[float, Meta(ge=0, le=20)] = 0.0
    visibility: Seconds | None = None


class Acks(Form, frozen=True):
    """Leases whose messages are done."""

    receipts: Receipts


class Extensions(Form, frozen=True):
    """Leases to keep for `seconds` from now."""

    receipts: Receipts
    seconds: Seconds


class Releases(Form, frozen=True):
    """Leases to release, to be received again after `after` seconds. `error` says what went wrong."""

    receipts: Receipts
    after: Seconds = 0.0
    error: str | None = None


class Rejections(Form, frozen=True):
    """Leases whose messages go to the dead letters now, and why."""

    receipts: Receipts
    reason: Reason
    error: str | None = None


class Purge(Form, frozen=True):
    """The name of the queue again, and why its messages are deleted."""

    confirm: str
    reason: Reason


class RedriveMatch(Form, frozen=True):
    """Which dead letters: those for which everything that is given holds."""

    fingerprint: str | None = None
    key: str | None = None
    event_type: str | None = None
    ids: Annotated[list[str], Meta(max_length=1_000)] = []


class Redrive(Form, frozen=True):
    """Which dead letters to move back, where to, how many and how fast; with `dry_run` only count them."""

    to: str | None = None
    limit: Annotated[int, Meta(ge=1)] | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None
    canary: Annotated[int, Meta(ge=0)] = 0
    match: RedriveMatch = msgspec.field(default_factory=RedriveMatch)
    reason: Annotated[str, Meta(max_length=500)] = ""
    dry_run: bool = False


class OutboxRedrive(Form, frozen=True):
    """Which failed or parked events to publish again, and why."""

    reason: Reason
    event_ids: Annotated[list[str], Meta(max_length=1_000)] = []
    key: str | None = None
    tenant: str | None = None
    type: str | None = None
    group: str | None = None
    limit: Annotated[int, Meta(ge=1)] | None = None
    canary: Annotated[int, Meta(ge=1)] | None = None
    dry_run: bool = False


class OutboxSkip(Form, frozen=True):
    """Which failed or parked event to give up, and why."""

    event_id: str
    reason: Reason


class NewTopicEvent(Form, frozen=True):
    """An event: its type, its fields, what orders it, and its id if the caller has made one."""

    type: Annotated[str, Meta(min_length=1, max_length=256)]
    payload: dict[str, Any]
    key: str | None = None
    event_id: str | None = None


class QueueSettings(Form, frozen=True):
    """The settings of a queue, with their defaults. `fifo` is by default whether the name ends in .fifo."""

    fifo: bool | None = None
    visibility: float = 30
    retention: float = 345_600
    delay: float = 0
    receive_wait: float = 20
    max_message_bytes: int = 1_048_576
    dead_letter: str | None = None
    max_receives: int = 3
    content_dedup: bool = False
    dedup_scope: Literal["queue", "group"] = "queue"
    redrive_allow: str | list[str] = "all"
    auto_delete_after: float | None = None


class NewToken(Form, frozen=True):
    """A token to create."""

    name: Annotated[str, Meta(pattern=f"^{NAME}$")]
    scope: Scope
    expires_in: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] | None = None


def decode(body: bytes, form: type[Any]) -> Any:
    """Return the body in its form; raise `InvalidInput` with the position or the field."""
    data = checked_bytes(body, len(body))
    try:
        try:
            return msgspec.json.decode(data, type=form)
        except msgspec.ValidationError:
            # Only this slower way knows the index of the entry at fault.
            return msgspec.convert(msgspec.json.decode(data), form)
    except msgspec.ValidationError as error:
        raise misfit(str(error)) from None
    except msgspec.DecodeError as error:
        text = explained(error, data)
        raise InvalidInput(f"body: {text}", remedy="Send one JSON object in UTF-8; nothing was changed.") from None


def misfit(text: str) -> InvalidInput:
    """Return the error of msgspec, with the field as a dotted path."""
    match = _AT.fullmatch(text)
    assert match is not None
    # "[...]" stands for a place that msgspec does not know.
    what, field = match["what"], (match["path"] or "").partition("[...]")[0].lstrip(".")
    if (named := _NAMED.fullmatch(what)) is not None:
        field = f"{field}.{named['name']}".lstrip(".")
    return InvalidInput(f"{field or 'body'}: {what[:1].lower()}{what[1:]}", field=field or None)


class NewAgent(Form, frozen=True):
    """An agent to create; by default with a new id."""

    agentId: str | None = None
    order: Literal["producer", "total"] = "producer"
    accept: Literal["listed", "all"] = "listed"
    principalArn: str | None = None


class Subscribing(Form, frozen=True):
    """The 1 to 20 event types to receive, each exact or `prefix.*`; without them, all."""

    eventTypes: list[Any] | None = None


class Event(Form, frozen=True):
    """One event. Each event is checked alone, so that an invalid one stops no other agent's."""

    agentId: Any = None
    timestamp: Any = None
    eventType: Any = None
    data: Any = None
    eventId: Any = None


class Events(Form, frozen=True):
    """Events of one or several agents, each agent's in order."""

    events: Annotated[list[Any], Meta(min_length=1, max_length=500)]


class AgentLease(Form, frozen=True):
    """How many events to lease, for how long, by default as the settings say, and how long to wait for the first."""

    wait: Annotated[float, Meta(ge=0, le=20)] = 0.0
    max_messages: Annotated[int, Meta(ge=1, le=10)] = 10
    visibility: Annotated[float, Meta(ge=1, le=43_200)] | None = None


class AgentExtensions(Form, frozen=True):
    """Leases to keep for `seconds` from now."""

    receipts: Receipts
    seconds: Seconds = 30.0


class TokenRotation(Form, frozen=True):
    """For how many seconds the previous token stays valid; with 0 it is revoked at once."""

    overlap: Annotated[float, Meta(ge=0, le=86_400)] = 600.0


class Replay(Form, frozen=True):
    """The time since which events are delivered again, or 'trim_horizon' for all that are kept."""

    since: Any = "trim_horizon"


class AgentRedrive(Form, frozen=True):
    """How many dead letters to redrive; all without a limit."""

    limit: Annotated[int, Meta(ge=1, le=100_000)] | None = None


class NewTask(Form, frozen=True):
    """A task to run."""

    name: str
    input: dict[str, Any] = {}
    requestId: str | None = None
    timeoutMs: Annotated[int, Meta(ge=1, le=43_200_000)] | None = None


class NewJob(Form, frozen=True):
    """A graph of tasks to run; each has `taskId` and `name`, and may have `dependsOn` and `input`."""

    tasks: list[dict[str, Any]]
    jobId: str | None = None
    requestId: str | None = None


class MoreTasks(Form, frozen=True):
    """Tasks to add to a job."""

    tasks: list[dict[str, Any]]


class TaskRetry(Form, frozen=True):
    """Which tasks to retry; `since` is a duration such as 1h, ISO 8601 or milliseconds."""

    state: Literal["failed", "cancelled"] = "failed"
    name: str | None = None
    since: str | int | None = None
    limit: Annotated[int, Meta(ge=1)] | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None
    reason: Annotated[str, Meta(max_length=500)] = ""
