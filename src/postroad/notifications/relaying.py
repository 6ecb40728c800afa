"""The relay: the outbox's dispatcher, whose target here is the queue of pushes."""

from __future__ import annotations

import msgspec

from postroad.errors import InvalidNotification, RowRejected
from postroad.events import DomainEvent
from postroad.notifications.identity import PUSH_ID, push_id_of_event
from postroad.notifications.messages import PUSH, PushNotification
from postroad.notifications.store import NotificationStore
from postroad.outbox import DispatcherConfig, OutboxDispatcher
from postroad.queues import OutgoingMessage, Queue

# A push that cannot be relayed holds back no other one; a relay that died is replaced soon, since a push that is
# sent to the queue twice is recognised there.
_CONFIG = DispatcherConfig(policy="skip", lease=5.0)


def relay(store: NotificationStore, push_queue: Queue) -> OutboxDispatcher:
    """What sends the recorded pushes to the queue."""
    return OutboxDispatcher(store.outbox, push_queue, _CONFIG, service="notifications", render=push_message)


def push_message(event: DomainEvent) -> OutgoingMessage:
    """The message of a recorded push, under the same id however often it is sent."""
    if event.type != PUSH:
        raise RowRejected(f"{event.type!r} is no push; the outbox of notifications is for pushes alone")
    try:
        # A database may have changed the order of the keys.
        push = PushNotification.from_json(msgspec.json.encode(event.payload))
    except InvalidNotification as error:
        raise RowRejected(str(error)) from error
    return OutgoingMessage(push.to_json(), {PUSH_ID: push_id_of_event(event.event_id)})
