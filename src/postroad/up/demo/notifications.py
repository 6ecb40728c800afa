"""Scene `notifications`: a chat whose offline users get pushes, until the push provider refuses them all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from postroad import notifications
from postroad.queues import QueueSpec
from postroad.up.demo.database import DemoDatabase
from postroad.up.demo.stage import Stage
from postroad.wiring import Backend

SCENE = "notifications"
PUSH_QUEUE, PUSH_DEAD = "demo-push-queue", "demo-push-dlq"
OFFLINE_QUEUE, OFFLINE_DEAD = "demo-offline-queue", "demo-offline-dlq"
USERS = ("amara", "bruno", "chloe", "dmitri", "elena", "farid", "greta", "hugo")
WORDS = ("Are you coming tonight?", "The parcel is here.", "Lunch at one?", "Look at this!", "Call me back, please.")
ONLINE = 0.25


@dataclass(frozen=True, slots=True)
class DemoProvider:
    """Stands in for APNSSender and FCMSender: it accepts pushes, refuses them all, and accepts them again."""

    database: DemoDatabase

    def send(self, push: notifications.PushNotification, token: str, *, push_id: str) -> notifications.TokenResult:
        """Show the push on the user's phone, or refuse it."""
        if self.database.provider() == "failing":
            self.database.failed(SCENE)
            return notifications.TokenResult(token, "permanent", 403, "the account is suspended")
        self.database.effect(SCENE, message_id(push.userId, push.timestamp), "phone")
        return notifications.TokenResult(token, "sent", 200)


def message_id(user: str, at: datetime) -> str:
    """Return the id of the message that was written to a user at this millisecond."""
    return f"{user}-{at:%Y%m%d%H%M%S}{at.microsecond // 1_000:03}"


def chat_file(database: DemoDatabase) -> Path:
    """Return the file with the users' devices and messages."""
    return database.path.with_name(f"{database.path.name}-chat")


def prepare(backend: Backend, database: DemoDatabase) -> None:
    """Create the queues, and a phone for each user."""
    for name, dead in ((PUSH_QUEUE, PUSH_DEAD), (OFFLINE_QUEUE, OFFLINE_DEAD)):
        backend.create_queue(QueueSpec(dead))
        backend.create_queue(QueueSpec(name, dead_letter=dead, max_receives=3))
    chat_file(database).touch(mode=0o600)
    with notifications.NotificationStore(f"sqlite:///{chat_file(database)}") as store:
        for user in USERS:
            store.register_device(user, f"phone-of-{user}", "fcm")


def play(stage: Stage) -> None:
    """Send messages and deliver or push them until the stage stops."""

    def deliver(message: notifications.OfflineMessage) -> bool:
        stage.database.effect(SCENE, message.messageId, "phone")
        return True

    with (
        notifications.NotificationStore(f"sqlite:///{chat_file(stage.database)}") as store,
        notifications.NotificationWorker(
            stage.backend,
            store,
            push_queue=PUSH_QUEUE,
            offline_queue=OFFLINE_QUEUE,
            fcm=DemoProvider(stage.database),
        ) as worker,
    ):
        hook = notifications.RealtimeHook(
            stage.backend.queue(OFFLINE_QUEUE),
            is_online=lambda user: stage.chance.random() < ONLINE,
            deliver=deliver,
        )
        with stage.working(worker.run):
            last = datetime.now(UTC)
            for _ in stage.beats(3.5):
                last = _write(stage, hook, last)


def _write(stage: Stage, hook: notifications.RealtimeHook, last: datetime) -> datetime:
    """Let one user write to another, in a later millisecond than before."""
    sender, user = stage.chance.sample(USERS, k=2)
    at = datetime.now(UTC)
    at = at.replace(microsecond=at.microsecond // 1_000 * 1_000)
    while at <= last:
        stage.stop.wait(0.001)
        at = datetime.now(UTC)
        at = at.replace(microsecond=at.microsecond // 1_000 * 1_000)
    id = message_id(user, at)
    hook.on_message(notifications.OfflineMessage(user, id, f"{sender}-{user}", sender, stage.chance.choice(WORDS), at))
    stage.database.published(SCENE, id)
    return at
