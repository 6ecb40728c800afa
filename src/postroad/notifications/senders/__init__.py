"""Senders of pushes: Apple's and Google's providers over HTTP/2."""

from postroad.notifications.senders.apns import APNSSender
from postroad.notifications.senders.fcm import FCMSender

__all__ = ["APNSSender", "FCMSender"]
