"""The two messages of the chat pipeline, in the JSON in which they travel, read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from postroad.errors import InvalidMessage, InvalidNotification
from postroad.events import MAX_BYTES, checked_bytes, sendable
from postroad.notifications.checks import (
    check_badge,
    check_id,
    check_text,
    check_type,
    checked_data,
    checked_moment,
    checked_tokens,
    moment_text,
)

_SHOWN = 200


def read_object(body: str | bytes) -> dict[str, Any]:
    """The JSON object that the body holds, or InvalidNotification."""
    try:
        data = checked_bytes(body, MAX_BYTES)
        found = msgspec.json.decode(data)
        # msgspec checks everything but repeated keys.
        json.loads(data, object_pairs_hook=_unrepeated)
    except InvalidNotification:
        raise
    except (msgspec.MsgspecError, InvalidMessage, ValueError, RecursionError) as error:
        raise InvalidNotification(f"the notification is not valid JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(found, dict):
        raise InvalidNotification("the notification is not a JSON object")
    return found


def member(document: dict[str, Any], name: str) -> Any:
    """The member of the object, or InvalidNotification when it is missing."""
    if name not in document:
        raise InvalidNotification(f"{name}: is missing", field=name)
    return document[name]


def _unrepeated(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidNotification(f"the key {name[:80]!r} is given twice")
        seen.add(name)


PUSH: Final = "push_notification"
OFFLINE: Final = "offline_message"
DEFAULT_SOUND: Final = "default"
_MAX_TITLE = 1_024
_MAX_BODY = 4_096


@dataclass(frozen=True, slots=True)
class PushPayload:
    """What the device shows and plays, and what its app reads.

    Args:
        title: The first line of the alert.
        body: Its text.
        data: Texts for the app, by names that no provider keeps for itself.
        sound: The name of a sound of the app; "default" for the device's own, None for silence.
        badge: The number on the app's icon; 0 removes it, None leaves it as it is.
        threadId: Alerts of one thread are shown together. Without it, those of one `conversationId` in `data` are.
    """

    title: str = field(repr=False)
    body: str = field(repr=False)
    data: Mapping[str, str] = field(default_factory=dict, repr=False)
    sound: str | None = DEFAULT_SOUND
    badge: int | None = None
    threadId: str | None = None

    def __post_init__(self) -> None:
        check_text(self.title, "payload.title", most=_MAX_TITLE)
        check_text(self.body, "payload.body", most=_MAX_BODY)
        object.__setattr__(self, "data", checked_data(self.data))
        if self.sound is not None:
            check_id(self.sound, "payload.sound")
        check_badge(self.badge)
        if self.threadId is not None:
            check_id(self.threadId, "payload.threadId")

    @property
    def thread(self) -> str | None:
        """The thread with whose alerts this one is shown."""
        return self.threadId or self.data.get("conversationId")

    def to_document(self) -> dict[str, Any]:
        """The payload as it travels; what says nothing new is left out."""
        document: dict[str, Any] = {"title": self.title, "body": self.body, "data": self.data}
        if self.sound != DEFAULT_SOUND:
            document["sound"] = self.sound
        own = {"badge": self.badge, "threadId": self.threadId}
        return document | {name: value for name, value in own.items() if value is not None}


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
                "payload": self.payload.to_document(),
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
    return PushPayload(
        value["title"],
        value["body"],
        value.get("data", {}),
        sound=value.get("sound", DEFAULT_SOUND),
        badge=value.get("badge"),
        threadId=value.get("threadId"),
    )


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
