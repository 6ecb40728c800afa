"""A message for a user who is offline: stored once, pushed to her phone, and read when she comes back.

Run it: python examples/12_chat_notifications.py
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime

import postroad
from postroad.notifications import (
    NotificationStore,
    NotificationWorker,
    OfflineMessage,
    PushNotification,
    RealtimeHook,
    TokenResult,
)
from postroad.topology import apply, chat_topology

PUSHES, OFFLINE = "rtchat-dev-push-queue", "rtchat-dev-offline-queue"


class Printer:
    """Stands in for APNSSender and FCMSender."""

    def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
        print(f"{token} shows: {push.payload.title}: {push.payload.body}")
        return TokenResult(token, "sent", 200)


def main(folder: str) -> None:
    with (
        postroad.connect(f"sqlite:///{folder}/bus.db") as backend,
        NotificationStore(f"sqlite:///{folder}/chat.db") as store,
    ):
        apply(chat_topology("rtchat", "dev"), backend)
        store.register_device("ann", "anns-phone", "fcm")

        hook = RealtimeHook(backend.queue(OFFLINE), is_online=lambda user: False, deliver=lambda message: False)
        message = OfflineMessage("ann", "msg_1", "conv_1", "bob", "Hey, are you there?", datetime.now(UTC))
        print("the message is", hook.on_message(message))
        print("the same one again is", hook.on_message(message))

        worker = NotificationWorker(backend, store, push_queue=PUSHES, offline_queue=OFFLINE, fcm=Printer())
        report = worker.run_once()  # in production: postroad notifications worker
        print(f"stored {report.stored}, pushed {report.sent}")

        missed = store.pending("ann")
        print("ann comes back and reads:", [each.content for each in missed])
        store.mark_delivered("ann", [each.messageId for each in missed])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
