"""The rows that a claim gives, the message of each with what subscriptions filter on, and what becomes of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from postroad.errors import InvalidMessage, MessageTooLarge, Undecryptable
from postroad.events import DomainEvent, sendable
from postroad.outbox.dispatching.config import DispatcherConfig
from postroad.outbox.dispatching.publisher import Rejected, Sent, TargetDown, Tried, Untried, Verdict, described
from postroad.outbox.rows import FAILED, PENDING, SENT
from postroad.queues import OutgoingMessage

Kind = Literal["sent", "retried", "failed", "held"]


class Key(NamedTuple):
    """A lane of one tenant; the tenant is empty where there is none."""

    tenant: str
    lane: str


FIRST_KEY = Key("", "")
"""Comes before every key: lanes are never empty."""


Lease = tuple[str, int]
"""The id of a row and the token under which it was claimed."""


class ClaimedRow(NamedTuple):
    """A row that this dispatcher may publish while its lease lasts."""

    id: str
    key: Key
    seq: int
    payload: str
    attempts: int
    redrives: int
    token: int
    gap: tuple[str, ...] = ()
    """Events of the key that this row's message has to name as left out."""
    waited: bool = False
    """Whether it was found because its time had come, and not on the walk from key to key."""

    @property
    def lease(self) -> Lease:
        """What tells this claim of the row from another one."""
        return self.id, self.token


@dataclass(frozen=True, slots=True)
class Settlement:
    """What to write about one row; the row is free again afterwards."""

    row: ClaimedRow
    kind: Kind
    state: str
    error: str | None = None
    """None leaves the last error as it is, or clears it where the row is sent."""
    delay: float | None = None
    """Seconds until it is due again; None leaves the time as it is."""

    @property
    def counts(self) -> bool:
        """Whether it was an attempt."""
        return self.kind != "held"


class Settled(NamedTuple):
    """A settlement that was written, and the age of the row in seconds."""

    settlement: Settlement
    age: float


class Gauges(NamedTuple):
    """The three figures that alarms watch."""

    backlog: int
    lag_seconds: float
    dead_letters: int


def settlement(row: ClaimedRow, verdict: Verdict, config: DispatcherConfig, chance: float) -> Settlement:
    """Decide by the verdict, the row's attempts and the settings; `chance` is the jitter, from 0 to 1."""
    match verdict:
        case Sent():
            return Settlement(row, "sent", SENT)
        case Rejected(error):
            return Settlement(row, "failed", FAILED, error)
        case Tried(error):
            return _tried(row, error, config, chance)
        case TargetDown(error):
            return Settlement(row, "held", PENDING, error)
        case Untried():
            return given_back(row)


def given_back(row: ClaimedRow) -> Settlement:
    """Free the row as it was."""
    return Settlement(row, "held", PENDING)


def _tried(row: ClaimedRow, error: str, config: DispatcherConfig, chance: float) -> Settlement:
    attempts = max(row.attempts, 0) + 1
    if attempts >= config.retry_max:
        return Settlement(row, "failed", FAILED, error)
    return Settlement(row, "retried", PENDING, error, config.pause(attempts, chance=chance))


_GROUP = re.compile(r"[!-~]{1,128}")


def group_id(tenant_id: str | None, lane: str) -> str:
    """The FIFO group of a key; what SNS and SQS would not take as a group becomes its SHA-256."""
    name = f"{tenant_id}:{lane}" if tenant_id else lane
    if _GROUP.fullmatch(name):
        return name
    return f"h:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def bus_name(name: str) -> str:
    """The name of a FIFO topic or queue on AWS, where names have no dots: events.transfers is events-transfers.fifo."""
    return f"{name.removesuffix('.fifo').replace('.', '-')}.fifo"


_MOST_GAPS = 10
_HEADING = frozenset({"v", "eventId", "occurredAt", "tenantId", "traceparent", "type"})
Render = Callable[[DomainEvent], OutgoingMessage]


class Unbuildable(Exception):
    """The row holds nothing that could be published; the verdict says why."""

    def __init__(self, label: str, error: Exception) -> None:
        super().__init__(label)
        self.verdict = Rejected(described(error, label))


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """Makes the messages of one outbox."""

    max_bytes: int
    decrypt: Callable[[DomainEvent], DomainEvent]
    """Opens the payload, or raises Undecryptable."""
    service: str = "default"
    """Whose events they are, told to receivers as the publisher."""
    render: Render | None = None

    def message(self, row: ClaimedRow) -> OutgoingMessage:
        """The row's message; Unbuildable where there is none, and what `render` raises."""
        event = self._event(row)
        if self.render is not None:
            return msgspec.structs.replace(self.render(event), dedup_id=str(event.event_id))
        body = _with_further_fields(event.to_json(), row.payload)
        if len(body) > self.max_bytes:
            raise Unbuildable("too-large", MessageTooLarge(f"{len(body):,} bytes, above {self.max_bytes:,}"))
        group = group_id(row.key.tenant, row.key.lane)
        return OutgoingMessage(body, attributes=self._attributes(row, event), group=group, dedup_id=str(event.event_id))

    def _attributes(self, row: ClaimedRow, event: DomainEvent) -> dict[str, str]:
        attributes = {
            "EventType": event.type,
            "EventId": str(event.event_id),
            "Seq": str(row.seq),
            "PublisherId": self.service,
        }
        if event.tenant_id:
            attributes["TenantId"] = event.tenant_id
        if event.traceparent:
            attributes["TraceParent"] = event.traceparent
        if row.gap:
            attributes["Gap"] = ",".join(row.gap[:_MOST_GAPS])
        if row.redrives:
            attributes["Redriven"] = str(row.redrives)
        return attributes

    def _event(self, row: ClaimedRow) -> DomainEvent:
        try:
            event = DomainEvent.from_json(row.payload)
        except InvalidMessage as error:
            raise Unbuildable("malformed", error) from error
        if not event.key:
            raise Unbuildable("malformed", InvalidMessage("key: is missing or empty", field="key"))
        try:
            return self.decrypt(event)
        except Undecryptable as error:
            raise Unbuildable("crypto", error) from error


def _with_further_fields(body: bytes, stored: str) -> bytes:
    """The body with what the stored envelope holds beyond the fields we know, behind those."""
    envelope: dict[str, Any] = msgspec.json.decode(stored)["envelope"]
    if envelope.keys() <= _HEADING:
        return body
    further = {name: value for name, value in envelope.items() if name not in _HEADING}
    event = msgspec.json.decode(body)
    return sendable(msgspec.json.encode({**event, "envelope": {**event["envelope"], **further}}))
