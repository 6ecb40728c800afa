"""What becomes of a message for a user who is not there: handed over, and stored once with its push."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from postroad.errors import SendFailed
from postroad.notifications.checks import check_text
from postroad.notifications.messages import OfflineMessage, PushNotification, PushPayload
from postroad.notifications.reports import tell_conflict, tell_nameless, tell_undelivered
from postroad.notifications.store import NotificationStore
from postroad.queues import OutgoingMessage, Queue

Stored = Literal["stored", "duplicate"]
_TITLE = "New message"
_MOST_CHARACTERS = 1_000
# Both providers take 4,096 bytes in all; title, data and their own words need the rest.
_MOST_BYTES = 2_048


class OfflineProcessor:
    """Stores messages and records their pushes. `display_name` turns a sender's id into what devices show."""

    def __init__(
        self,
        store: NotificationStore,
        *,
        display_name: Callable[[str], str] | None = None,
        include_content: bool = True,
    ) -> None:
        self._store = store
        self._display_name = display_name
        self._include_content = include_content

    def handle(self, message: OfflineMessage) -> Stored:
        """Store the message and record its push in one transaction; a message that is there already stays as it is."""
        return self.handle_all([message])[0]

    def handle_all(self, messages: Sequence[OfflineMessage]) -> list[Stored]:
        """Store several messages in one transaction; what fails one of them fails all."""
        kept = self._store.keep(messages, self._push)
        for message, outcome in zip(messages, kept, strict=True):
            if outcome == "conflict":
                tell_conflict(message.userId, message.messageId)
        return ["stored" if outcome == "stored" else "duplicate" for outcome in kept]

    def _push(self, message: OfflineMessage, tokens: Sequence[str]) -> PushNotification:
        payload = PushPayload(_TITLE, self._body(message), {"conversationId": message.conversationId})
        return PushNotification(message.userId, tuple(tokens), payload, message.timestamp)

    def _body(self, message: OfflineMessage) -> str:
        if not self._include_content:
            return _TITLE
        text = f"{self._name(message.senderId)}: {message.content}"[:_MOST_CHARACTERS]
        return text.encode()[:_MOST_BYTES].decode(errors="ignore")

    def _name(self, sender_id: str) -> str:
        if self._display_name is None:
            return sender_id
        try:
            name = self._display_name(sender_id)
            check_text(name, "display_name")
        except Exception as error:
            # A message is not lost because nobody knows its sender's name.
            tell_nameless(error)
            return sender_id
        return name or sender_id


class RealtimeHook:
    """Decides for each message whether its user gets it now."""

    def __init__(
        self, offline_queue: Queue, *, is_online: Callable[[str], bool], deliver: Callable[[OfflineMessage], bool]
    ) -> None:
        self._queue = offline_queue
        self._is_online = is_online
        self._deliver = deliver

    def on_message(self, message: OfflineMessage) -> Literal["delivered", "queued"]:
        """Deliver the message, or queue it once; `SendFailed` when the queue does not take it."""
        if self._delivered(message):
            return "delivered"
        self._send(message)
        return "queued"

    def _delivered(self, message: OfflineMessage) -> bool:
        try:
            return self._is_online(message.userId) and self._deliver(message) is True
        except Exception as error:
            tell_undelivered(message.userId, error)
            return False

    def _send(self, message: OfflineMessage) -> None:
        try:
            (result,) = self._queue.send([OutgoingMessage(message.to_json())])
        except Exception as error:
            raise SendFailed(f"queue {self._queue.name!r} did not take the message: {error}") from error
        if not result.ok:
            raise SendFailed(f"queue {self._queue.name!r} did not take the message: {result.error}") from result.error
