"""The message that a subscriber receives."""

from __future__ import annotations

import hashlib

import msgspec

from postroad.events.strict import sendable


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event for one subscriber; `agentId` is the producer."""

    agentId: str
    timestamp: str
    eventType: str
    data: msgspec.Raw
    eventId: str
    subscriberId: str
    sequenceNumber: str
    late: bool = False
    replay: bool = False
    traceparent: str | None = None


def encode(message: Message) -> bytes:
    """The message as a body."""
    return sendable(msgspec.json.encode(message))


def dedup_id(subscriber_id: str, producer_id: str, event_id: str, replay_id: str | None = None) -> str:
    """What tells a message that was sent before."""
    text = "|".join((subscriber_id, producer_id, event_id, *(() if replay_id is None else (replay_id,))))
    return hashlib.sha256(text.encode()).hexdigest()
