"""What a field of a notification may hold. Refusals name the field and never show what it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from postroad.errors import InvalidNotification

MAX_ID: Final = 256
MAX_TOKENS: Final = 500
MAX_BADGE: Final = 2**31 - 1
_FCM_NAMES: Final = ("from", "message_type")
_FCM_PREFIXES: Final = ("google.", "gcm.")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TOKEN = re.compile(r"[A-Za-z0-9._:~=+-]{1,1024}")
_MOMENT = Annotated[datetime, msgspec.Meta(tz=True)]


def check_type(value: object, wanted: str) -> None:
    """Refuse the type of another kind of message."""
    if value != wanted:
        raise _refused("type", f"is not {wanted!r}")


def check_id(value: object, field: str) -> None:
    """Refuse what is not 1 to 256 characters without control characters."""
    text = _text(value, field)
    if not 1 <= len(text) <= MAX_ID:
        raise _refused(field, f"has {len(text)} characters, not 1 to {MAX_ID}")
    if _CONTROL.search(text):
        raise _refused(field, "holds a control character")


def check_text(value: object, field: str, *, most: int | None = None) -> None:
    """Refuse what is no text, holds NUL or is longer than `most` characters."""
    text = _text(value, field)
    if "\0" in text:
        raise _refused(field, "holds the character NUL, which no database stores")
    if most is not None and len(text) > most:
        raise _refused(field, f"has {len(text):,} characters, more than {most:,}")


def checked_token(value: object, field: str = "token") -> str:
    """The device token: nothing that could leave its place in a URL, a header or a log line."""
    text = _text(value, field)
    if not text:
        raise _refused(field, "is empty")
    if _TOKEN.fullmatch(text) is None or ".." in text:
        raise _refused(field, "holds what no device token holds, or more than 1,024 characters")
    return text


def checked_tokens(value: object) -> tuple[str, ...]:
    """The device tokens as a tuple of 1 to 500."""
    if not isinstance(value, list | tuple):
        raise _refused("deviceTokens", f"is {type(value).__name__}, not a list of texts")
    if not 1 <= len(value) <= MAX_TOKENS:
        raise _refused("deviceTokens", f"holds {len(value)} tokens, not 1 to {MAX_TOKENS}")
    return tuple(checked_token(token, f"deviceTokens[{index}]") for index, token in enumerate(value))


def checked_data(value: object) -> dict[str, str]:
    """The data of a push: texts by their names, but for the names that the providers keep for themselves."""
    if not isinstance(value, Mapping):
        raise _refused("payload.data", f"is {type(value).__name__}, not an object")
    for name, each in value.items():
        check_text(name, "payload.data")
        check_text(each, f"payload.data.{name[:80]}")
        if name == "aps":
            raise _refused("payload.data.aps", "is a name that APNs keeps for itself")
        if name in _FCM_NAMES or name.startswith(_FCM_PREFIXES):
            raise _refused(f"payload.data.{name[:80]}", "is a name that FCM keeps for itself")
    return dict(value)


def check_badge(value: object) -> None:
    """Refuse what is neither None nor a number that an icon can show."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BADGE:
        raise _refused("payload.badge", f"is not a whole number from 0 to {MAX_BADGE:,}")


def checked_moment(value: object) -> datetime:
    """The moment in UTC; an ISO 8601 text with a time zone, or a datetime that has one."""
    if isinstance(value, str):
        value = _read_moment(value)
    if not isinstance(value, datetime):
        raise _refused("timestamp", f"is {type(value).__name__}, not a text like 2024-01-15T10:30:00Z")
    if value.utcoffset() is None:
        raise _refused("timestamp", "has no time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise _refused("timestamp", "is not within the years 1 to 9999") from error


def moment_text(moment: datetime) -> str:
    """The moment as the seed writes it: UTC, `Z`, a fraction only when there is one."""
    whole = "seconds" if not moment.microsecond else "milliseconds" if not moment.microsecond % 1_000 else "auto"
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=whole) + "Z"


def _read_moment(text: str) -> datetime:
    try:
        return msgspec.convert(text, _MOMENT)
    except (msgspec.ValidationError, ValueError) as error:
        raise _refused("timestamp", "is not a moment like 2024-01-15T10:30:00Z") from error


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
