"""Which provider a device token belongs to, what became of a push there, and names that stay the same for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Protocol
from uuid import UUID

from postroad.errors import InvalidInput, InvalidNotification
from postroad.notifications.checks import check_id
from postroad.notifications.messages import PushNotification

Outcome = Literal["sent", "dead_token", "retry", "auth", "permanent"]


@dataclass(frozen=True, slots=True)
class TokenResult:
    """What a provider answered for one device token."""

    token: str = field(repr=False)
    outcome: Outcome
    status: int | None = None
    """The HTTP status; None when no answer came."""
    reason: str = ""
    provider_id: str | None = None
    retry_after: float | None = None
    """Seconds the provider asks to wait."""
    dead_since: datetime | None = None
    """Since when the provider knows the token to be dead; None when it did not say."""
    lost_connection: int | None = None
    """Which of the sender's connections was lost before an answer came: however many pushes it took along, that is
    one failure of the provider. None when no connection was lost."""


class PushSender(Protocol):
    """Sends one push to one device. Every failure of the provider is a result, never an exception."""

    def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
        """Send `push` to `token`. Sent again under the same `push_id` it replaces the first on the device."""
        ...


Platform = Literal["apns", "fcm"]
PLATFORMS: Final[tuple[Platform, ...]] = ("apns", "fcm")
_OF_APPLE = re.compile(r"[0-9A-Fa-f]{64,200}")


def platform_of(token: str, registered: Platform | None) -> Platform:
    """What the device was registered as, else what the token's prefix or form says."""
    if registered is not None:
        return registered
    for platform in PLATFORMS:
        if token.startswith(f"{platform}:"):
            return platform
    return "apns" if _OF_APPLE.fullmatch(token) else "fcm"


def bare(token: str, platform: Platform) -> str:
    """The token as its provider knows it."""
    return token.removeprefix(f"{platform}:")


def checked_platform(value: object) -> Platform | None:
    """The platform, or None where the token itself has to tell."""
    if value is None:
        return None
    for platform in PLATFORMS:
        if value == platform:
            return platform
    raise InvalidInput("platform: is neither 'apns' nor 'fcm'", field="platform")


PUSH_ID: Final = "PushId"
"""The attribute that names a push on its way through the queue."""
_HEX: Final = 32


def event_id_of(user_id: str, message_id: str) -> UUID:
    """The id in the outbox of the push for one message."""
    return UUID(hex=_hash(f"{user_id}\n{message_id}".encode()))


def offline_push_id(user_id: str, message_id: str) -> str:
    """The id of the push for one message of one user."""
    return push_id_of_event(event_id_of(user_id, message_id))


def push_id_of_event(event_id: UUID) -> str:
    """The id of the push that the outbox holds under this id."""
    return f"offline:{event_id.hex}"


def push_id_of(body: bytes, attributes: Mapping[str, str]) -> str:
    """The id of a received push: the one it came with, else one made of its body."""
    given = attributes.get(PUSH_ID)
    try:
        check_id(given, PUSH_ID)
    except InvalidNotification:
        return f"body:{_hash(body)}"
    return str(given)


def token_hash(token: str) -> str:
    """What is kept of a device token where the token itself must not be."""
    return hashlib.sha256(token.encode()).hexdigest()


def user_hash(user_id: str) -> str:
    """What logs show of a user."""
    return _hash(user_id.encode())[:12]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_HEX]
