"""The JSON of the two messages: the seed's own, kept as it is, and everything else refused by its path."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from postroad.errors import InvalidNotification
from postroad.notifications.messages import OfflineMessage, PushNotification, PushPayload, parse_notification

PUSH = """{
  "type": "push_notification",
  "userId": "user_123",
  "deviceTokens": ["token1", "token2"],
  "payload": {
    "title": "New message",
    "body": "John: Hey!",
    "data": {
      "conversationId": "conv_456"
    }
  },
  "timestamp": "2024-01-15T10:30:00Z"
}"""
OFFLINE = """{
  "type": "offline_message",
  "userId": "user_123",
  "messageId": "msg_789",
  "conversationId": "conv_456",
  "senderId": "user_999",
  "content": "Hey, are you there?",
  "timestamp": "2024-01-15T10:30:00Z"
}"""
BREAKS: list[tuple[str, Any, str]] = [
    ("deviceTokens", [], "deviceTokens"),
    ("deviceTokens", "token1", "deviceTokens"),
    ("deviceTokens", ["t"] * 501, "deviceTokens"),
    ("deviceTokens", ["t", ""], "deviceTokens[1]"),
    ("deviceTokens", ["t", 7], "deviceTokens[1]"),
    ("deviceTokens", ["t/../x"], "deviceTokens[0]"),
    ("deviceTokens", ["a..b"], "deviceTokens[0]"),
    ("deviceTokens", ["a\r\nHost: b"], "deviceTokens[0]"),
    ("deviceTokens", ["t\n"], "deviceTokens[0]"),
    ("payload", None, "payload"),
    ("payload", {"title": "t"}, "payload.body"),
    ("payload", {"title": "t", "body": "b", "data": {"count": 3}}, "payload.data.count"),
    ("payload", {"title": "t", "body": "b", "data": {"aps": "x"}}, "payload.data.aps"),
    ("payload", {"title": "t", "body": "b", "data": {"from": "bob"}}, "payload.data.from"),
    ("payload", {"title": "t", "body": "b", "data": {"message_type": "x"}}, "payload.data.message_type"),
    ("payload", {"title": "t", "body": "b", "data": {"google.ttl": "x"}}, "payload.data.google.ttl"),
    ("payload", {"title": "t", "body": "b", "data": {"gcm.notification.x": "x"}}, "payload.data.gcm.notification.x"),
    ("payload", {"title": "t", "body": "b", "sound": 7}, "payload.sound"),
    ("payload", {"title": "t", "body": "b", "sound": ""}, "payload.sound"),
    ("payload", {"title": "t", "body": "b", "badge": -1}, "payload.badge"),
    ("payload", {"title": "t", "body": "b", "badge": True}, "payload.badge"),
    ("payload", {"title": "t", "body": "b", "badge": "3"}, "payload.badge"),
    ("payload", {"title": "t", "body": "b", "threadId": "a\nb"}, "payload.threadId"),
    ("payload", {"title": "t", "body": "b", "data": None}, "payload.data"),
    ("payload", {"title": "t" * 1_025, "body": "b"}, "payload.title"),
    ("payload", {"title": "t", "body": "b" * 4_097}, "payload.body"),
    ("timestamp", "2024-01-15T10:30:00", "timestamp"),
    ("timestamp", "yesterday", "timestamp"),
    ("timestamp", 1_705_314_600, "timestamp"),
    ("timestamp", "0000-01-15T10:30:00Z", "timestamp"),
    ("timestamp", "0001-01-01T00:30:00+14:00", "timestamp"),
    ("type", "offline_message", "type"),
    ("type", "sms", "type"),
    ("type", None, "type"),
    ("userId", "", "userId"),
    ("userId", "u" * 257, "userId"),
    ("userId", "u\x1f", "userId"),
    ("userId", 5, "userId"),
]
NO_JSON = {
    "nan": b'{"a":NaN}',
    "infinity": b'{"a":1e999}',
    "repeated-keys": OFFLINE.replace('"userId"', '"userId":"u","userId"').encode(),
    "repeated-inner-keys": PUSH.replace('"title"', '"body":"b","title"').encode(),
    "trailing-bytes": OFFLINE.encode() + b"x",
    "long-number": OFFLINE.replace("{", '{"n":' + "1" * 5_000 + ",", 1).encode(),
    "escaped-surrogate": OFFLINE.replace("Hey", "\\ud800").encode(),
    "no-utf8": OFFLINE.encode().replace(b"Hey", b"\xff"),
    "empty": b"",
    "list": b"[]",
    "deep": b"[" * 10_000,
}


@pytest.mark.parametrize("text", [PUSH, OFFLINE], ids=["push", "offline"])
def test_the_seeds_json_comes_back_as_it_was(text: str) -> None:
    message = parse_notification(text)

    assert message.to_json() == json.dumps(json.loads(text), separators=(",", ":"))
    assert parse_notification(message.to_json().encode()) == message


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2024-01-15T10:30:00.000Z", "2024-01-15T10:30:00Z"),
        ("2024-01-15T10:30:00.120Z", "2024-01-15T10:30:00.120Z"),
        ("2024-01-15T10:30:00.000001Z", "2024-01-15T10:30:00.000001Z"),
        ("2024-01-15T12:30:00+02:00", "2024-01-15T10:30:00Z"),
    ],
)
def test_moments_are_written_in_utc_with_a_fraction_only_when_there_is_one(given: str, written: str) -> None:
    message = OfflineMessage.from_json(OFFLINE.replace("2024-01-15T10:30:00Z", given))

    assert json.loads(message.to_json())["timestamp"] == written


def test_a_moment_of_another_zone_is_the_same_moment() -> None:
    there = datetime(2024, 1, 15, 12, 30, tzinfo=timezone(timedelta(hours=2)))

    message = OfflineMessage("u", "m", "c", "s", "hello", there)

    assert message.timestamp == datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
    assert message.to_json().endswith('"2024-01-15T10:30:00Z"}')


def test_unknown_keys_are_ignored() -> None:
    message = OfflineMessage.from_json(OFFLINE.replace("{", '{"later":{"deep":[1.5]},', 1))

    assert message == OfflineMessage.from_json(OFFLINE)


@pytest.mark.parametrize(("name", "value", "field"), BREAKS, ids=[f"{b[2]}-{n}" for n, b in enumerate(BREAKS)])
def test_a_wrong_field_is_refused_by_its_path(name: str, value: Any, field: str) -> None:
    document = json.loads(PUSH) | {name: value}

    with pytest.raises(InvalidNotification) as caught:
        PushNotification.from_json(json.dumps(document))

    assert caught.value.field == field
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize("name", list(json.loads(OFFLINE)))
def test_a_missing_field_is_refused_by_its_name(name: str) -> None:
    document = {key: value for key, value in json.loads(OFFLINE).items() if key != name}

    with pytest.raises(InvalidNotification, match=name):
        OfflineMessage.from_json(json.dumps(document))
    with pytest.raises(InvalidNotification, match=name):
        parse_notification(json.dumps(document))


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON.keys())
def test_what_is_no_strict_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidNotification):
        parse_notification(body)


def test_the_type_of_no_message_is_refused() -> None:
    with pytest.raises(InvalidNotification, match="type"):
        parse_notification(OFFLINE.replace("offline_message", "sms"))


@pytest.mark.parametrize("content", ["a\0b", "\ud800", 5])
def test_content_that_no_database_stores_is_refused_when_the_message_is_made(content: Any) -> None:
    with pytest.raises(InvalidNotification, match="content"):
        OfflineMessage("u", "m", "c", "s", content, datetime(2024, 1, 1, tzinfo=UTC))


def test_neither_refusals_nor_reprs_show_tokens_or_texts() -> None:
    push = PushNotification("u", ("secret-token",), PushPayload("t1tle", "b0dy", {"k": "v4lue"}), datetime.now(UTC))
    offline = OfflineMessage("u", "m", "c", "s", "c0ntent", datetime.now(UTC))

    with pytest.raises(InvalidNotification) as caught:
        PushNotification("u", ("secret-token\r\n",), push.payload, push.timestamp)

    shown = repr(push) + repr(offline) + str(caught.value)
    assert not any(text in shown for text in ("secret-token", "t1tle", "b0dy", "v4lue", "c0ntent"))


@pytest.mark.parametrize(
    "own", [{}, {"sound": None}, {"sound": "ding.caf", "badge": 0}, {"badge": 3, "threadId": "thread"}]
)
def test_sound_badge_and_thread_travel_and_what_says_nothing_new_is_left_out(own: dict[str, Any]) -> None:
    push = PushNotification("ann", ("t",), PushPayload("t", "b", **own), datetime(2024, 1, 15, tzinfo=UTC))

    assert json.loads(push.to_json())["payload"] == {"title": "t", "body": "b", "data": {}, **own}
    assert PushNotification.from_json(push.to_json()) == push
