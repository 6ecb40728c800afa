"""The two messages of the chat pipeline, in the JSON in which they travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from postroad.errors import InvalidNotification
from postroad.events.strict import sendable
from postroad.notifications.checks import (
    check_id,
    check_text,
    check_type,
    checked_data,
    checked_moment,
    checked_tokens,
    moment_text,
)
from postroad.notifications.reading import member, read_object

PUSH: Final = "push_notification"
OFFLINE: Final = "offline_message"
_MAX_TITLE = 1_024
_MAX_BODY = 4_096


@dataclass(frozen=True, slots=True)
class PushPayload:
    """What the device shows, and what its app reads."""

    title: str = field(repr=False)
    body: str = field(repr=False)
    data: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_text(self.title, "payload.title", most=_MAX_TITLE)
        check_text(self.body, "payload.body", most=_MAX_BODY)
        object.__setattr__(self, "data", checked_data(self.data))


@dataclass(frozen=True, slots=True)
class PushNotification:
    """One push to all devices of a user."""

    userId: str
    deviceTokens: tuple[str, ...] = field(repr=False)
    payload: PushPayload
    timestamp: datetime
    type: str = PUSH

    def __post_init__(self) -> None:
        check_type(self.type, PUSH)
        check_id(self.userId, "userId")
        object.__setattr__(self, "deviceTokens", checked_tokens(self.deviceTokens))
        if not isinstance(self.payload, PushPayload):
            raise InvalidNotification("payload: is not an object", field="payload")
        object.__setattr__(self, "timestamp", checked_moment(self.timestamp))

    def to_json(self) -> str:
        """The push as it travels."""
        return _encode(
            {
                "type": self.type,
                "userId": self.userId,
                "deviceTokens": self.deviceTokens,
                "payload": {"title": self.payload.title, "body": self.payload.body, "data": self.payload.data},
                "timestamp": moment_text(self.timestamp),
            }
        )

    @classmethod
    def from_json(cls, body: str | bytes) -> PushNotification:
        """The push that the body holds; InvalidNotification names what is missing or wrong."""
        return _push(read_object(body))


@dataclass(frozen=True, slots=True)
class OfflineMessage:
    """A chat message for a user who is not there."""

    userId: str
    messageId: str
    conversationId: str
    senderId: str
    content: str = field(repr=False)
    timestamp: datetime
    type: str = OFFLINE

    def __post_init__(self) -> None:
        check_type(self.type, OFFLINE)
        for name in ("userId", "messageId", "conversationId", "senderId"):
            check_id(getattr(self, name), name)
        check_text(self.content, "content")
        object.__setattr__(self, "timestamp", checked_moment(self.timestamp))

    def to_json(self) -> str:
        """The message as it travels."""
        return _encode(
            {
                "type": self.type,
                "userId": self.userId,
                "messageId": self.messageId,
                "conversationId": self.conversationId,
                "senderId": self.senderId,
                "content": self.content,
                "timestamp": moment_text(self.timestamp),
            }
        )

    @classmethod
    def from_json(cls, body: str | bytes) -> OfflineMessage:
        """The message that the body holds; InvalidNotification names what is missing or wrong."""
        return _offline(read_object(body))


def parse_notification(body: str | bytes) -> PushNotification | OfflineMessage:
    """Whichever of the two messages the body holds; InvalidNotification for everything else."""
    document = read_object(body)
    kind = member(document, "type")
    if kind not in (PUSH, OFFLINE):
        raise InvalidNotification(f"type: is neither {PUSH!r} nor {OFFLINE!r}", field="type")
    return _push(document) if kind == PUSH else _offline(document)


def _push(document: dict[str, Any]) -> PushNotification:
    check_type(member(document, "type"), PUSH)
    return PushNotification(
        userId=member(document, "userId"),
        deviceTokens=member(document, "deviceTokens"),
        payload=_payload(member(document, "payload")),
        timestamp=member(document, "timestamp"),
    )


def _payload(value: Any) -> PushPayload:
    if not isinstance(value, dict):
        raise InvalidNotification("payload: is not an object", field="payload")
    for name in ("title", "body"):
        if name not in value:
            raise InvalidNotification(f"payload.{name}: is missing", field=f"payload.{name}")
    return PushPayload(value["title"], value["body"], value.get("data", {}))


def _offline(document: dict[str, Any]) -> OfflineMessage:
    check_type(member(document, "type"), OFFLINE)
    return OfflineMessage(
        userId=member(document, "userId"),
        messageId=member(document, "messageId"),
        conversationId=member(document, "conversationId"),
        senderId=member(document, "senderId"),
        content=member(document, "content"),
        timestamp=member(document, "timestamp"),
    )


def _encode(document: dict[str, Any]) -> str:
    return sendable(msgspec.json.encode(document)).decode()
