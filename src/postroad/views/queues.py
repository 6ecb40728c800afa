"""The documents of queues and messages: what the CLI prints and the HTTP API answers, field by field."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from postroad.errors import QueueNotFound
from postroad.queues import Delivery, PeekedMessage, Queue, QueueOverview, QueueSpec
from postroad.settings.names import nearest

if TYPE_CHECKING:
    from postroad.operations import FailureGroups
    from postroad.queues import MoveTask
    from postroad.queues.redrive import RedriveReport
    from postroad.wiring.backend import Backend


def open_queue(backend: Backend, name: str) -> Queue:
    """The queue of this name, or `QueueNotFound` with the nearest name that exists."""
    try:
        return backend.queue(name)
    except QueueNotFound as error:
        raise queue_not_found(backend, name) from error


def queue_not_found(backend: Backend, name: str) -> QueueNotFound:
    """The error for a queue that does not exist, with the nearest name that does."""
    return QueueNotFound(f'queue "{name}" does not exist', nearest=nearest(name, backend.queues()))


def queue_row(backend: Backend, name: str) -> dict[str, Any]:
    """One queue in a list: its kind, its dead-letter queue and what it holds."""
    found = backend.overviews([name])
    if not found:
        raise queue_not_found(backend, name)
    return overview_row(found[0])


def overview_row(overview: QueueOverview) -> dict[str, Any]:
    """One queue in a list, as it was looked at."""
    spec, stats = overview.spec, overview.stats
    return {
        "name": spec.name,
        "fifo": spec.fifo,
        "visible": stats.visible,
        "in_flight": stats.in_flight,
        "delayed": stats.delayed,
        "oldest_age_seconds": stats.oldest_age_seconds,
        "dead_letter": spec.dead_letter,
    }


def queue_detail(backend: Backend, name: str) -> dict[str, Any]:
    """One queue with its settings and the queues whose dead letters it takes."""
    row = queue_row(backend, name)
    return {**row, "settings": settings_document(backend.queue_spec(name)), "sources": backend.sources(name)}


def settings_document(spec: QueueSpec) -> dict[str, Any]:
    """Every setting of a queue under its own name."""
    settings = {field.name: getattr(spec, field.name) for field in fields(spec)}
    if isinstance(spec.redrive_allow, tuple):
        settings["redrive_allow"] = list(spec.redrive_allow)
    return settings


def peeked(message: PeekedMessage, *, body: bool) -> dict[str, Any]:
    """A message seen without touching it; its body only when asked for."""
    document: dict[str, Any] = {
        "message_id": message.message_id,
        "attributes": dict(message.attributes),
        "group": message.group,
        "receive_count": message.receive_count,
        "sent_at": _moment(message.sent_at),
        "state": message.state,
        "size": len(message.body),
    }
    if body:
        document["body"] = message.body.decode(errors="replace")
    return document


def delivery(leased: Delivery) -> dict[str, Any]:
    """A leased message with the receipt that settles it."""
    return {
        "message_id": leased.message_id,
        "body": leased.body.decode(errors="replace"),
        "attributes": dict(leased.attributes),
        "group": leased.group,
        "receipt": leased.receipt,
        "receive_count": leased.receive_count,
        "sent_at": _moment(leased.sent_at),
        "first_received_at": _moment(leased.first_received_at),
        "sequence": leased.sequence,
    }


def redrive_report(report: RedriveReport) -> dict[str, Any]:
    """What a redrive did, or would do."""
    return {
        "run_id": report.run_id,
        "status": report.status,
        "matched": report.matched,
        "moved": report.moved,
        "returned": report.returned,
        "skipped": dict(report.skipped),
        "destinations": dict(report.destinations),
        "task_handle": report.task_handle,
    }


def failure_groups_document(found: FailureGroups) -> dict[str, Any]:
    """Dead letters by what they died of, the largest group first."""
    return {
        "items": [
            {
                "fingerprint": group.fingerprint,
                "event_type": group.event_type,
                "error": group.error,
                "count": group.count,
                "first_sent_at": _moment(group.first_sent_at),
                "last_sent_at": _moment(group.last_sent_at),
                "sample_ids": list(group.sample_ids),
            }
            for group in found.groups
        ],
        "scanned": found.scanned,
        "complete": found.complete,
    }


def move_task(task: MoveTask) -> dict[str, Any]:
    """A redrive that the store does by itself."""
    return {"task_handle": task.task_handle, "status": task.status, "moved": task.moved, "to_move": task.to_move}


def _moment(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")
