"""What became of a push on one device, and who can send one there."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

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
