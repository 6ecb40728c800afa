"""Senders of pushes to Apple and Google, over HTTP/2."""

from postroad.notifications.senders.apns import APNSSender
from postroad.notifications.senders.fcm import FCMSender

__all__ = ["APNSSender", "FCMSender"]
