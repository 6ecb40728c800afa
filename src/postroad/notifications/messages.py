"""The two messages of the chat pipeline, and what their fields may hold. Errors name a field, and never its content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec

from postroad.errors import InvalidMessage, InvalidNotification
from postroad.events import MAX_BYTES, checked_bytes, repeated_key, sendable

PUSH: Final = "push_notification"
OFFLINE: Final = "offline_message"
DEFAULT_SOUND: Final = "default"
_MAX_TITLE: Final = 1_024
_MAX_BODY: Final = 4_096
_MAX_ID: Final = 256
_MAX_TOKENS: Final = 500
_MAX_BADGE: Final = 2**31 - 1
_SHOWN: Final = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TOKEN = re.compile(r"[A-Za-z0-9._:~=+-]{1,1024}")
_MOMENT = Annotated[datetime, msgspec.Meta(tz=True)]


@dataclass(frozen=True, slots=True)
class PushPayload:
    """What the device shows and plays, and what its app reads.

    Args:
        title: The first line of the alert, of up to 1,024 characters.
        body: Its text, of up to 4,096 characters.
        data: Texts for the app, by names that no provider reserves.
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
        object.__setattr__(self, "data", _checked_data(self.data))
        if self.sound is not None:
            check_id(self.sound, "payload.sound")
        badge: object = self.badge
        is_badge = isinstance(badge, int) and not isinstance(badge, bool) and 0 <= badge <= _MAX_BADGE
        if badge is not None and not is_badge:
            raise _refused("payload.badge", f"is not a whole number from 0 to {_MAX_BADGE:,}")
        if self.threadId is not None:
            check_id(self.threadId, "payload.threadId")

    @property
    def thread(self) -> str | None:
        """The thread with whose alerts this one is shown."""
        return self.threadId or self.data.get("conversationId")

    def to_document(self) -> dict[str, Any]:
        """Return the payload as JSON holds it, without fields that have their defaults."""
        document: dict[str, Any] = {"title": self.title, "body": self.body, "data": self.data}
        if self.sound != DEFAULT_SOUND:
            document["sound"] = self.sound
        own = {"badge": self.badge, "threadId": self.threadId}
        return document | {name: value for name, value in own.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PushNotification:
    """One push to the devices of a user.

    Args:
        userId: The user, in 1 to 256 characters.
        deviceTokens: The tokens of 1 to 500 devices.
        payload: What the devices show.
        timestamp: When it was made, with a time zone. A push that waits too long for its provider is given up.
        type: Always "push_notification".

    Raises:
        InvalidNotification: A field holds something else; `field` names it.
    """

    userId: str
    deviceTokens: tuple[str, ...] = field(repr=False)
    payload: PushPayload
    timestamp: datetime
    type: str = PUSH

    def __post_init__(self) -> None:
        _check_type(self.type, PUSH)
        check_id(self.userId, "userId")
        object.__setattr__(self, "deviceTokens", _checked_tokens(self.deviceTokens))
        if not isinstance(self.payload, PushPayload):
            raise _refused("payload", "is not an object")
        object.__setattr__(self, "timestamp", _checked_moment(self.timestamp))

    def to_json(self) -> str:
        """Return the push as JSON."""
        return _encoded(self, payload=self.payload.to_document())

    @classmethod
    def from_json(cls, body: str | bytes) -> PushNotification:
        """Return the push that the JSON `body` holds; InvalidNotification names what is missing or wrong."""
        return _decoded(cls, PUSH, _read_object(body))


@dataclass(frozen=True, slots=True)
class OfflineMessage:
    """A chat message for a user who is offline.

    Args:
        userId: The user who gets it. This and the other ids have 1 to 256 characters.
        messageId: With `userId`, what recognises a copy of the message.
        conversationId: The conversation, whose alerts devices show together.
        senderId: The user who wrote it.
        content: The text, without NUL.
        timestamp: When it was written, with a time zone.
        type: Always "offline_message".

    Raises:
        InvalidNotification: A field holds something else; `field` names it.
    """

    userId: str
    messageId: str
    conversationId: str
    senderId: str
    content: str = field(repr=False)
    timestamp: datetime
    type: str = OFFLINE

    def __post_init__(self) -> None:
        _check_type(self.type, OFFLINE)
        for name in ("userId", "messageId", "conversationId", "senderId"):
            check_id(getattr(self, name), name)
        check_text(self.content, "content")
        object.__setattr__(self, "timestamp", _checked_moment(self.timestamp))

    def to_json(self) -> str:
        """Return the message as JSON."""
        return _encoded(self)

    @classmethod
    def from_json(cls, body: str | bytes) -> OfflineMessage:
        """Return the message that the JSON `body` holds; InvalidNotification names what is missing or wrong."""
        return _decoded(cls, OFFLINE, _read_object(body))


_Message = TypeVar("_Message", PushNotification, OfflineMessage)


def parse_notification(body: str | bytes) -> PushNotification | OfflineMessage:
    """Return the push or message that the JSON holds; raise InvalidNotification for everything else.

    Args:
        body: The JSON.
    """
    document = _read_object(body)
    kind = _member(document, "type")
    if kind not in (PUSH, OFFLINE):
        raise _refused("type", f"is neither {PUSH!r} nor {OFFLINE!r}")
    return _decoded(PushNotification, PUSH, document) if kind == PUSH else _decoded(OfflineMessage, OFFLINE, document)


def _encoded(message: PushNotification | OfflineMessage, **instead: Any) -> str:
    document = {"type": message.type} | {each.name: getattr(message, each.name) for each in fields(message)}
    document |= {"timestamp": moment_text(message.timestamp), **instead}
    return sendable(msgspec.json.encode(document)).decode()


def _decoded(cls: type[_Message], kind: str, document: dict[str, Any]) -> _Message:
    _check_type(_member(document, "type"), kind)
    values: dict[str, Any] = {}
    for each in fields(cls):
        value = _member(document, each.name)
        values[each.name] = _payload(value) if each.name == "payload" else value
    return cls(**values)


def _payload(value: Any) -> PushPayload:
    if not isinstance(value, dict):
        raise _refused("payload", "is not an object")
    for name in ("title", "body"):
        if name not in value:
            raise _refused(f"payload.{name}", "is missing")
    return PushPayload(**{each.name: value[each.name] for each in fields(PushPayload) if each.name in value})


def _read_object(body: str | bytes) -> dict[str, Any]:
    try:
        data = checked_bytes(body, MAX_BYTES)
        found, repeated = msgspec.json.decode(data), repeated_key(data)
    except (msgspec.MsgspecError, InvalidMessage, ValueError, RecursionError) as error:
        raise InvalidNotification(f"the notification is not valid JSON: {str(error)[:_SHOWN]}") from error
    if repeated is not None:
        raise InvalidNotification(f"the key {repeated!r} is given twice")
    if not isinstance(found, dict):
        raise InvalidNotification("the notification is not a JSON object")
    return found


def _member(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise _refused(name, "is missing")
    return document[name]


def _check_type(value: object, wanted: str) -> None:
    if value != wanted:
        raise _refused("type", f"is not {wanted!r}")


def check_id(value: object, field: str) -> None:
    """Raise InvalidNotification unless the value is 1 to 256 characters without control characters."""
    text = _text(value, field)
    if not 1 <= len(text) <= _MAX_ID:
        raise _refused(field, f"has {len(text)} characters, not 1 to {_MAX_ID}")
    if _CONTROL.search(text):
        raise _refused(field, "holds a control character")


def check_text(value: object, field: str, *, most: int | None = None) -> None:
    """Raise InvalidNotification if the value is not a text, holds NUL or has more than `most` characters."""
    text = _text(value, field)
    if "\0" in text:
        raise _refused(field, "holds the character NUL, which no database stores")
    if most is not None and len(text) > most:
        raise _refused(field, f"has {len(text):,} characters, more than {most:,}")


def checked_token(value: object, field: str = "token") -> str:
    """Return the device token; it holds nothing that could break out of a URL, a header or a log line."""
    text = _text(value, field)
    if not text:
        raise _refused(field, "is empty")
    if _TOKEN.fullmatch(text) is None or ".." in text:
        raise _refused(field, "is not a device token: it has a wrong character, or more than 1,024")
    return text


def _checked_tokens(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _refused("deviceTokens", f"is {type(value).__name__}, not a list of texts")
    if not 1 <= len(value) <= _MAX_TOKENS:
        raise _refused("deviceTokens", f"holds {len(value)} tokens, not 1 to {_MAX_TOKENS}")
    return tuple(checked_token(token, f"deviceTokens[{index}]") for index, token in enumerate(value))


def _checked_data(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _refused("payload.data", f"is {type(value).__name__}, not an object")
    for name, each in value.items():
        check_text(name, "payload.data")
        check_text(each, f"payload.data.{name[:80]}")
        if name == "aps":
            raise _refused("payload.data.aps", "is a name that APNs reserves")
        if name in ("from", "message_type") or name.startswith(("google.", "gcm.")):
            raise _refused(f"payload.data.{name[:80]}", "is a name that FCM reserves")
    return dict(value)


def _checked_moment(value: object) -> datetime:
    """Return the moment in UTC, of an ISO 8601 text with a time zone or a datetime that has one."""
    if isinstance(value, str):
        try:
            value = msgspec.convert(value, _MOMENT)
        except (msgspec.ValidationError, ValueError) as error:
            raise _refused("timestamp", "is not a moment like 2024-01-15T10:30:00Z") from error
    if not isinstance(value, datetime):
        raise _refused("timestamp", f"is {type(value).__name__}, not a text like 2024-01-15T10:30:00Z")
    if value.utcoffset() is None:
        raise _refused("timestamp", "has no time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise _refused("timestamp", "is not within the years 1 to 9999") from error


def moment_text(moment: datetime) -> str:
    """Return the moment as `2024-01-15T10:30:00Z`, with a fraction of a second only if there is one."""
    whole = "seconds" if not moment.microsecond else "milliseconds" if not moment.microsecond % 1_000 else "auto"
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=whole) + "Z"


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise _refused(field, f"is {type(value).__name__}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _refused(field, f"a lone surrogate at position {error.start} is not text") from error
    return value


def _refused(field: str, why: str) -> InvalidNotification:
    return InvalidNotification(f"{field}: {why}", field=field)
