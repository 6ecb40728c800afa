"""Providers on loopback, and senders that send to them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.notifications.senders.standins import ApnsStandIn, FcmStandIn, apns_stand_in, fcm_stand_in

from postroad.notifications.messages import PushNotification, PushPayload
from postroad.notifications.senders import APNSSender, FCMSender

TOKEN = "ab" * 32
PUSH = PushNotification(
    userId="user_123",
    deviceTokens=(TOKEN,),
    payload=PushPayload("New message", "John: Hey!", {"conversationId": "conv_456"}),
    timestamp=datetime(2024, 1, 15, 10, 30, tzinfo=UTC),
)


@pytest.fixture
def apple(tmp_path: Path) -> Iterator[ApnsStandIn]:
    with apns_stand_in(tmp_path) as stand_in:
        yield stand_in


@pytest.fixture
def google(tmp_path: Path) -> Iterator[FcmStandIn]:
    with fcm_stand_in(tmp_path) as stand_in:
        yield stand_in


@pytest.fixture
def apns(apple: ApnsStandIn) -> Iterator[APNSSender]:
    with APNSSender(**apple.arguments()) as sender:
        yield sender


@pytest.fixture
def fcm(google: FcmStandIn) -> Iterator[FCMSender]:
    with FCMSender(**google.arguments()) as sender:
        yield sender
