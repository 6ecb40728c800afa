"""Messages for users who are offline: queued, and stored once with their pushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from postroad.errors import SendFailed
from postroad.notifications.devices import user_hash
from postroad.notifications.messages import OfflineMessage, PushNotification, PushPayload, check_text
from postroad.notifications.store import NotificationStore
from postroad.queues import OutgoingMessage, Queue
from postroad.telemetry import counter, get_logger

Stored = Literal["stored", "duplicate"]
_TITLE = "New message"
_MOST_CHARACTERS = 1_000
# Both providers accept 4,096 bytes in all; title, data and field names need the rest.
_MOST_BYTES = 2_048
_log = get_logger("notifications")


class OfflineProcessor:
    """Stores messages, and records their pushes in the same transaction.

    Args:
        store: Where messages, devices and pushes are stored.
        display_name: Returns the name that devices show for a sender's id; by default they show the id.
        include_content: Whether pushes show the sender and the text. If not, they only say "New message", and neither
            Apple nor Google learns the content.

    Example:
        OfflineProcessor(store, display_name=users.name_of).handle(message)
    """

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
        """Store `message` and record its push in one transaction; a message that is stored already stays as it is."""
        return self.handle_all([message])[0]

    def handle_all(self, messages: Sequence[OfflineMessage]) -> list[Stored]:
        """Store `messages` in one transaction; if one fails, none is stored."""
        kept = self._store.keep(messages, self._push)
        for message, outcome in zip(messages, kept, strict=True):
            if outcome == "conflict":
                counter("offline_conflicts").inc()
                user, hashed = user_hash(message.userId), user_hash(message.messageId)
                _log.warning("notification_conflict", user=user, message=hashed)
        return ["stored" if outcome == "stored" else "duplicate" for outcome in kept]

    def _push(self, message: OfflineMessage, tokens: Sequence[str]) -> PushNotification:
        body = _TITLE
        if self._include_content:
            text = f"{self._name(message.senderId)}: {message.content}"[:_MOST_CHARACTERS]
            body = text.encode()[:_MOST_BYTES].decode(errors="ignore")
        payload = PushPayload(_TITLE, body, {"conversationId": message.conversationId})
        return PushNotification(message.userId, tuple(tokens), payload, message.timestamp)

    def _name(self, sender_id: str) -> str:
        if self._display_name is None:
            return sender_id
        try:
            name = self._display_name(sender_id)
            check_text(name, "display_name")
        except Exception as error:
            # The message matters more than the name of its sender.
            _log.warning("notification_name_failed", error=type(error).__name__)
            return sender_id
        return name or sender_id


class RealtimeHook:
    """Delivers each message at once if its user is online, and queues it otherwise.

    Args:
        offline_queue: The queue that a `NotificationWorker` receives as `offline_queue`.
        is_online: Says whether a user, given by id, is connected.
        deliver: Delivers a message to a connected user; it returns True only if the user has it.

    Example:
        hook = RealtimeHook(queue, is_online=sockets.has, deliver=sockets.send)
        hook.on_message(message)
    """

    def __init__(
        self, offline_queue: Queue, *, is_online: Callable[[str], bool], deliver: Callable[[OfflineMessage], bool]
    ) -> None:
        self._queue = offline_queue
        self._is_online = is_online
        self._deliver = deliver

    def on_message(self, message: OfflineMessage) -> Literal["delivered", "queued"]:
        """Deliver `message`, or queue it once; raise SendFailed if the queue does not accept it."""
        try:
            if self._is_online(message.userId) and self._deliver(message) is True:
                return "delivered"
        except Exception as error:
            _log.warning("notification_undelivered", user=user_hash(message.userId), error=type(error).__name__)
        try:
            (result,) = self._queue.send([OutgoingMessage(message.to_json())])
        except Exception as error:
            raise SendFailed(f"queue {self._queue.name!r} did not accept the message: {error}") from error
        if not result.ok:
            raise SendFailed(f"queue {self._queue.name!r} did not accept the message: {result.error}") from result.error
        return "queued"
