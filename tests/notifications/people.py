"""Messages, pushes and a provider that answers as it is told."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from postroad.notifications import OfflineMessage, PushNotification, PushPayload, TokenResult

SENT_AT = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)


def missed(message: str = "m1", user: str = "ann", content: str = "Hey!", *, at: datetime = SENT_AT) -> OfflineMessage:
    """A message that a user missed."""
    return OfflineMessage(user, message, "conv", "bob", content, at)


def push_to(*tokens: str, user: str = "ann", at: datetime | None = None) -> PushNotification:
    """A push to these devices."""
    return PushNotification(user, tokens, PushPayload("New message", "bob: Hey!"), at or datetime.now(UTC))


class Provider:
    """A sender that remembers what it was asked, and answers `sent` unless it was told otherwise."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[str, Callable[[str], TokenResult]] = {}
        self.down: TokenResult | None = None
        self._lock = threading.Lock()

    def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
        with self._lock:
            self.asked.append((push_id, token))
        if self.down is not None:
            return self.down
        answer = self.answers.get(token)
        return TokenResult(token, "sent", 200, "", "p-1") if answer is None else answer(token)

    @property
    def shown(self) -> Counter[tuple[str, str]]:
        """How often each device was asked to show each push."""
        return Counter(self.asked)
