"""Queues and messages as the CLI prints them and the HTTP API answers them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from postroad.errors import QueueNotFound
from postroad.queues import AckResult, Delivery, PeekedMessage, Queue, QueueOverview, SendResult
from postroad.settings import nearest
from postroad.views.service import EntryProblem, entry_problem

if TYPE_CHECKING:
    from postroad.operations import FailureGroups
    from postroad.wiring import Backend


class QueueRow(msgspec.Struct):
    """One queue of a list: its kind, its dead-letter queue and what it holds."""

    name: str
    fifo: bool
    visible: int
    in_flight: int
    delayed: int
    oldest_age_seconds: float | None
    dead_letter: str | None


class QueueLook(QueueRow):
    """What a queue held at one time."""

    at: datetime


class QueueDetail(QueueRow):
    """A queue with its settings, and the queues whose dead letters it receives."""

    settings: dict[str, Any]
    sources: list[str]


class FailureGroupRow(msgspec.Struct):
    """Dead letters with the same cause."""

    fingerprint: str
    event_type: str | None
    error: str | None
    count: int
    first_sent_at: datetime
    last_sent_at: datetime
    sample_ids: list[str]


class FailureGroupPage(msgspec.Struct):
    """Dead letters by cause; `complete` says whether all were examined."""

    items: list[FailureGroupRow]
    scanned: int
    complete: bool


class PeekedRow(msgspec.Struct):
    """A message that was peeked at; with its body only on request."""

    message_id: str
    attributes: Mapping[str, str]
    group: str | None
    receive_count: int
    sent_at: datetime
    state: Literal["visible", "in_flight", "delayed"]
    size: int
    body: str | msgspec.UnsetType = msgspec.UNSET


class Sent(msgspec.Struct):
    """The result of one message."""

    ok: bool
    message_id: str | None
    error: EntryProblem | None


class SentBatch(msgspec.Struct):
    """The result of each message, in order."""

    results: list[Sent]


class Settled(msgspec.Struct):
    """Whether one receipt still held its lease."""

    ok: bool
    error: EntryProblem | None


class SettledBatch(msgspec.Struct):
    """The result of each receipt, in order."""

    results: list[Settled]


class Leased(msgspec.Struct):
    """A leased message with the receipt that settles it."""

    message_id: str
    body: str
    attributes: Mapping[str, str]
    group: str | None
    receipt: str
    receive_count: int
    sent_at: datetime
    first_received_at: datetime
    sequence: int | None


class LeasedBatch(msgspec.Struct):
    """Leased messages; none if none arrived in time."""

    deliveries: list[Leased]


class Purged(msgspec.Struct):
    """How many messages were deleted."""

    purged: int


def open_queue(backend: Backend, name: str) -> Queue:
    """Return the queue of this name, or raise `QueueNotFound` with the nearest name that exists."""
    try:
        return backend.queue(name)
    except QueueNotFound as error:
        raise queue_not_found(backend, name) from error


def queue_not_found(backend: Backend, name: str) -> QueueNotFound:
    """Return the error for a queue that does not exist, with the nearest name that does."""
    return QueueNotFound(f'queue "{name}" does not exist', nearest=nearest(name, backend.queues()))


def overview(backend: Backend, name: str) -> QueueOverview:
    """Return what one queue is and holds; raise `QueueNotFound` with the nearest name that exists."""
    found = backend.overviews([name])
    if not found:
        raise queue_not_found(backend, name)
    return found[0]


def queue_row(found: QueueOverview) -> QueueRow:
    """Return one queue of a list."""
    spec, stats = found.spec, found.stats
    return QueueRow(
        name=spec.name,
        fifo=spec.fifo,
        visible=stats.visible,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        oldest_age_seconds=stats.oldest_age_seconds,
        dead_letter=spec.dead_letter,
    )


def queue_look(found: QueueOverview, at: datetime) -> QueueLook:
    """Return what a queue held at one time."""
    return QueueLook(**msgspec.structs.asdict(queue_row(found)), at=at)


def queue_detail(backend: Backend, name: str) -> QueueDetail:
    """Return one queue with its settings, and the queues whose dead letters it receives."""
    row = msgspec.structs.asdict(queue_row(overview(backend, name)))
    settings = msgspec.to_builtins(backend.queue_spec(name))
    if isinstance(settings["redrive_allow"], tuple):
        settings["redrive_allow"] = list(settings["redrive_allow"])
    return QueueDetail(**row, settings=settings, sources=list(backend.sources(name)))


def peeked(message: PeekedMessage, *, body: bool) -> PeekedRow:
    """Return a message that was peeked at; with its body only on request."""
    return PeekedRow(
        message_id=message.message_id,
        attributes=dict(message.attributes),
        group=message.group,
        receive_count=message.receive_count,
        sent_at=message.sent_at,
        state=message.state,
        size=len(message.body),
        body=message.body.decode(errors="replace") if body else msgspec.UNSET,
    )


def leased(delivery: Delivery) -> Leased:
    """Return a leased message with the receipt that settles it."""
    body, attributes = delivery.body.decode(errors="replace"), dict(delivery.attributes)
    return Leased(**{**msgspec.structs.asdict(delivery), "body": body, "attributes": attributes})


def sent(result: SendResult) -> Sent:
    """Return the result of one message."""
    return Sent(result.ok, result.message_id, None if result.error is None else entry_problem(result.error))


def settled(result: AckResult) -> Settled:
    """Return whether one receipt still held its lease."""
    return Settled(result.ok, None if result.error is None else entry_problem(result.error))


def failure_groups_page(found: FailureGroups) -> FailureGroupPage:
    """Return dead letters by cause, the largest group first."""
    rows = [msgspec.convert(group, FailureGroupRow, from_attributes=True) for group in found.groups]
    return FailureGroupPage(rows, found.scanned, found.complete)
