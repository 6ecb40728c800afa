"""What a dispatcher publishes: the message of each row, the call to the publisher, and the verdict on each message."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec

from postroad import errors, failpoints
from postroad.events import TASK_ROW, DomainEvent, sendable
from postroad.outbox.dispatching.store import ClaimedRow
from postroad.queues import OutgoingMessage, Queue
from postroad.telemetry import redact, tracing

_MOST_CHARACTERS = 500
_MOST_READ = 4_000
_OF_THE_TARGET = (
    *(errors.TargetUnavailable, errors.TopicNotFound, errors.QueueNotFound, errors.StreamNotFound, errors.NotPermitted),
    *(errors.Throttled, errors.RateLimited, errors.CircuitOpenError, errors.ConfigurationError, errors.StorageFull),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """The target accepted it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """It failed, or the outcome is unknown: it is tried again under the same id."""

    error: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """It can never be published."""

    error: str


@dataclass(frozen=True, slots=True)
class TargetDown:
    """The target refuses every message for now."""

    error: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Untried:
    """It was not sent, and waits for an earlier message."""


Verdict = Sent | Tried | Rejected | TargetDown | Untried
SENT = Sent()
UNTRIED = Untried()


def verdict_of(error: BaseException) -> Verdict:
    """Return what an error of the publisher means; an unknown error leaves the outcome unknown."""
    if isinstance(error, errors.HeldBack):
        return UNTRIED
    if isinstance(error, _OF_THE_TARGET):
        # The publisher may be the user's own code, so its retry_after may be anything.
        asked = getattr(error, "retry_after", None)
        is_time = isinstance(asked, int | float) and 0 < asked < math.inf
        return TargetDown(described(error), asked if is_time else None)
    if isinstance(error, errors.MessageTooLarge):
        return Rejected(described(error, "too-large"))
    if isinstance(error, errors.RowRejected | errors.InvalidInput):
        return Rejected(described(error, "rejected"))
    return Tried(described(error))


def described(error: BaseException, label: str | None = None) -> str:
    """Return the error in one line of at most 500 characters without secrets, behind its class or the label."""
    text = redact(f"{label or type(error).__name__}: {error}"[:_MOST_READ])
    return "".join(character for character in text if character.isprintable())[:_MOST_CHARACTERS]


@runtime_checkable
class Publisher(Protocol):
    """A topic, or anything else that publishes messages and returns a result with `ok` and `error` for each."""

    def publish(self, messages: Sequence[OutgoingMessage]) -> Sequence[Any]:
        """Publish `messages`; return one result for each."""
        ...


SubmitTasks = Callable[[Sequence[DomainEvent]], Sequence[errors.PostroadError | None]]
_NOBODY = errors.ConfigurationError(
    "tasks: this dispatcher's process has made no TaskProducer with this outbox",
    field="tasks",
    remedy="Make TaskProducer(backend, outbox=outbox) before the dispatcher runs; `postroad outbox run` does so.",
)


class Outlet:
    """Publishes messages and returns a verdict on each; it never raises.

    `atomic` says that a call publishes all of its messages or none. `tasks` returns what submits rows of tasks.
    """

    def __init__(self, publisher: Publisher | Queue, tasks: Callable[[], SubmitTasks | None] = lambda: None) -> None:
        self._tasks = tasks
        self._publish: Any = getattr(publisher, "publish", None) or getattr(publisher, "send", None)
        if self._publish is None:
            raise errors.ConfigurationError(
                f"publisher: {type(publisher).__name__} has neither publish nor send",
                field="publisher",
                remedy="Give a topic, a queue, or an object with publish(messages).",
            )
        self.name = str(getattr(publisher, "name", type(publisher).__name__))
        traits = getattr(publisher, "traits", None)
        self._fifo = bool(getattr(traits, "fifo", True))
        self.atomic = bool(getattr(traits, "atomic_batch", False))

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[Verdict]:
        """Publish in one call; if the whole call is rejected, publish one by one to find out which message it was."""
        held = [message.attributes.get("EventType") == TASK_ROW for message in messages]
        if any(held):
            tasks = iter(self._submit([each for each, is_task in zip(messages, held, strict=True) if is_task]))
            events = [each for each, is_task in zip(messages, held, strict=True) if not is_task]
            others = iter(self.publish(events) if events else ())
            return [next(tasks if is_task else others) for is_task in held]
        prepared = messages
        if not self._fifo:
            prepared = [msgspec.structs.replace(message, group=None, dedup_id=None) for message in messages]
        verdicts = self._call(prepared)
        if len(messages) > 1 and isinstance(verdicts, Rejected):
            return self._one_by_one(prepared)
        return [verdicts] * len(messages) if not isinstance(verdicts, list) else verdicts

    def _submit(self, messages: Sequence[OutgoingMessage]) -> list[Verdict]:
        submit = self._tasks()
        if submit is None:
            return [Tried(described(_NOBODY))] * len(messages)
        try:
            found = submit([DomainEvent.from_json(message.body) for message in messages])
            failpoints.hit("outbox.after_publish")
        except BaseException as error:
            found = [error if isinstance(error, errors.PostroadError) else errors.OutcomeUnknown(str(error))] * len(
                messages
            )
        verdicts: list[Verdict] = [SENT if error is None else verdict_of(error) for error in found]
        # What keeps tasks from their queue does not keep events from their topic.
        return [Tried(each.error) if isinstance(each, TargetDown) else each for each in verdicts]

    def _call(self, messages: Sequence[OutgoingMessage]) -> list[Verdict] | Verdict:
        """Return a verdict for each message, or one for all if the call raised."""
        try:
            with tracing.publishing(self.name, messages):
                results = list(self._publish(messages))
            failpoints.hit("outbox.after_publish")
        except BaseException as error:
            return verdict_of(error)
        silent = Tried("OutcomeUnknown: the publisher gave no result for this message")
        verdicts = [_verdict(result) for result in results[: len(messages)]]
        return verdicts + [silent] * (len(messages) - len(verdicts))

    def _one_by_one(self, messages: Sequence[OutgoingMessage]) -> list[Verdict]:
        """Publish each message in a call of its own, but none behind a failed one of its group."""
        verdicts: list[Verdict] = []
        stopped: set[str | None] = set()
        for message in messages:
            found = UNTRIED if message.group in stopped else self._call([message])
            verdict = found[0] if isinstance(found, list) else found
            verdicts.append(verdict)
            if not isinstance(verdict, Sent) and message.group is not None:
                stopped.add(message.group)
        return verdicts


def _verdict(result: Any) -> Verdict:
    if result.ok:
        return SENT
    if result.error is None:
        return Tried("PublishError: the publisher gave no reason")
    return verdict_of(result.error)


_GROUP = re.compile(r"[!-~]{1,128}")


def group_id(tenant_id: str | None, lane: str) -> str:
    """Return the FIFO group of a key: the key itself, or its SHA-256 if SNS and SQS would reject it.

    Args:
        tenant_id: The event's tenant, which stands before the key; None or "" where there is none.
        lane: The event's ordering key, as `OutboxRow.lane` has it.
    """
    name = f"{tenant_id}:{lane}" if tenant_id else lane
    if _GROUP.fullmatch(name):
        return name
    return f"h:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def bus_name(name: str) -> str:
    """Return the name of a FIFO topic or queue on AWS: `events.transfers` becomes `events-transfers.fifo`.

    Args:
        name: The name of a domain, such as `events.transfers`.
    """
    return f"{name.removesuffix('.fifo').replace('.', '-')}.fifo"


_MOST_GAPS = 10
_HEADING = frozenset({"v", "eventId", "occurredAt", "tenantId", "traceparent", "type"})
Render = Callable[[DomainEvent], OutgoingMessage]


class Unbuildable(Exception):
    """No message can be made of the row; the verdict says why."""

    def __init__(self, label: str, error: Exception) -> None:
        super().__init__(label)
        self.verdict = Rejected(described(error, label))


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """Makes the messages of an outbox's rows."""

    max_bytes: int
    decrypt: Callable[[DomainEvent], DomainEvent]
    """Decrypts the payload, or raises Undecryptable."""
    service: str = "default"
    """The attribute `PublisherId` of the messages."""
    render: Render | None = None

    def message(self, row: ClaimedRow) -> OutgoingMessage:
        """Return the row's message; raise Unbuildable if there is none, or what `render` raises."""
        event = self._event(row)
        if self.render is not None and event.type != TASK_ROW:
            return msgspec.structs.replace(self.render(event), dedup_id=str(event.event_id))
        body = _with_further_fields(event.to_json(), row.payload)
        if len(body) > self.max_bytes:
            raise Unbuildable("too-large", errors.MessageTooLarge(f"{len(body):,} bytes, above {self.max_bytes:,}"))
        event_id = str(event.event_id)
        attributes = {"EventType": event.type, "EventId": event_id, "Seq": str(row.seq), "PublisherId": self.service}
        if event.tenant_id:
            attributes["TenantId"] = event.tenant_id
        if event.traceparent:
            attributes["TraceParent"] = event.traceparent
        if row.gap:
            attributes["Gap"] = ",".join(row.gap[:_MOST_GAPS])
        if row.redrives:
            attributes["Redriven"] = str(row.redrives)
        group = group_id(row.key.tenant, row.key.lane)
        return OutgoingMessage(body, attributes=attributes, group=group, dedup_id=event_id)

    def _event(self, row: ClaimedRow) -> DomainEvent:
        try:
            event = DomainEvent.from_json(row.payload)
        except errors.InvalidMessage as error:
            raise Unbuildable("malformed", error) from error
        if not event.key:
            raise Unbuildable("malformed", errors.InvalidMessage("key: is missing or empty", field="key"))
        try:
            return self.decrypt(event)
        except errors.Undecryptable as error:
            raise Unbuildable("crypto", error) from error


def _with_further_fields(body: bytes, stored: str) -> bytes:
    """Add to the body what the stored envelope holds beyond the fields that Postroad knows."""
    envelope: dict[str, Any] = msgspec.json.decode(stored)["envelope"]
    if envelope.keys() <= _HEADING:
        return body
    further = {name: value for name, value in envelope.items() if name not in _HEADING}
    event = msgspec.json.decode(body)
    return sendable(msgspec.json.encode({**event, "envelope": {**event["envelope"], **further}}))
