"""Where the realtime service hands over: delivered now, or queued for later, never both and never neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from postroad.errors import SendFailed
from postroad.notifications.messages import OfflineMessage
from postroad.notifications.telling import tell_undelivered
from postroad.queues import OutgoingMessage, Queue


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
