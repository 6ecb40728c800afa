"""Chat notifications: messages for offline users are stored once, and pushed once to each device."""

from typing import TYPE_CHECKING

from postroad.lazy import lazy_names
from postroad.notifications.devices import PushSender, TokenResult
from postroad.notifications.health import Autoscaler, Health as Health
from postroad.notifications.messages import OfflineMessage, PushNotification, PushPayload, parse_notification
from postroad.notifications.offline import OfflineProcessor, RealtimeHook
from postroad.notifications.push import PushProcessor
from postroad.notifications.store import Device, NotificationStore
from postroad.notifications.users import (
    PushShown as PushShown,
    UserShown as UserShown,
    configured_store as configured_store,
    configured_user as configured_user,
    push_results as push_results,
    show_user as show_user,
)
from postroad.notifications.worker import NotificationWorker, WorkerReport

if TYPE_CHECKING:
    from postroad.notifications.senders import APNSSender, FCMSender
else:  # only senders need what the extra `push` installs
    __getattr__ = lazy_names(__name__, {"postroad.notifications.senders": "APNSSender FCMSender"})

__all__ = [
    "APNSSender",
    "Autoscaler",
    "Device",
    "FCMSender",
    "NotificationStore",
    "NotificationWorker",
    "OfflineMessage",
    "OfflineProcessor",
    "PushNotification",
    "PushPayload",
    "PushProcessor",
    "PushSender",
    "RealtimeHook",
    "TokenResult",
    "WorkerReport",
    "parse_notification",
]
