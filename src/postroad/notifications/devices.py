"""Device tokens and their providers, the results of pushes, and the ids and hashes that stand for them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Protocol
from uuid import UUID

from postroad.errors import InvalidInput, InvalidNotification
from postroad.notifications.messages import PushNotification, check_id

Outcome = Literal["sent", "dead_token", "retry", "auth", "permanent"]


@dataclass(frozen=True, slots=True)
class TokenResult:
    """What a provider answered for one device token.

    Attributes:
        token: The device token.
        outcome: "sent"; "dead_token": the device gets nothing more; "retry": it may work later; "auth": the sender's
            own key, account or topic is refused; "permanent": this push can never be sent.
        status: The HTTP status; None if no answer came.
        reason: The provider's own word for it.
        provider_id: The provider's id of the push.
        retry_after: Seconds that the provider asks to wait.
        dead_since: Since when the provider knows that the token is dead, if it said so.
        lost_connection: The number of the sender's connection that was lost before an answer came. All pushes that were
            lost with it count as one failure of the provider.
    """

    token: str = field(repr=False)
    outcome: Outcome
    status: int | None = None
    reason: str = ""
    provider_id: str | None = None
    retry_after: float | None = None
    dead_since: datetime | None = None
    lost_connection: int | None = None


class PushSender(Protocol):
    """Sends one push to one device. A failure of the provider is a result, not an exception."""

    def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
        """Send `push` to `token`. If it is sent again under the same `push_id`, it replaces the first on the device."""
        ...


Platform = Literal["apns", "fcm"]
PLATFORMS: Final[tuple[Platform, ...]] = ("apns", "fcm")
_OF_APPLE = re.compile(r"[0-9A-Fa-f]{64,200}")


def platform_of(token: str, registered: Platform | None) -> Platform:
    """Return the platform that the device was registered with, else the one that its token looks like."""
    if registered is not None:
        return registered
    for platform in PLATFORMS:
        if token.startswith(f"{platform}:"):
            return platform
    return "apns" if _OF_APPLE.fullmatch(token) else "fcm"


def bare(token: str, platform: Platform) -> str:
    """Return the token as its provider knows it."""
    return token.removeprefix(f"{platform}:")


def checked_platform(value: object) -> Platform | None:
    """Return the platform; None leaves it to `platform_of`."""
    for platform in (None, *PLATFORMS):
        if value == platform:
            return platform
    raise InvalidInput("platform: is neither 'apns' nor 'fcm'", field="platform")


PUSH_ID: Final = "PushId"
"""The attribute of a message that holds the id of its push."""
_HEX: Final = 32


def event_id_of(user_id: str, message_id: str) -> UUID:
    """Return the id that the push for one message has in the outbox."""
    return UUID(hex=_hash(f"{user_id}\n{message_id}".encode()))


def offline_push_id(user_id: str, message_id: str) -> str:
    """Return the id of the push for one message of one user."""
    return push_id_of_event(event_id_of(user_id, message_id))


def push_id_of_event(event_id: UUID) -> str:
    return f"offline:{event_id.hex}"


def push_id_of(body: bytes, attributes: Mapping[str, str]) -> str:
    """Return the id of a received push: that of its attribute, else a hash of its body."""
    given = attributes.get(PUSH_ID)
    try:
        check_id(given, PUSH_ID)
    except InvalidNotification:
        return f"body:{_hash(body)}"
    return str(given)


def token_hash(token: str) -> str:
    """Return the hash that is stored instead of a device token."""
    return hashlib.sha256(token.encode()).hexdigest()


def user_hash(user_id: str) -> str:
    """Return the hash that logs show instead of a user."""
    return _hash(user_id.encode())[:12]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_HEX]
