"""Every JSON body that Postroad writes is one that queues take, whatever its texts say."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from postroad.agents.stream import Message, Rejected
from postroad.events import DomainEvent, codec, event
from postroad.notifications.messages import PushNotification, PushPayload
from postroad.queues.rules import check_text
from postroad.tasks.messages import TaskMessage, outgoing

ODD = "\ufffe and \uffff, \u2028, \x01, \x7f, é, 😀, \\uffff"


@event
class Noted:
    text: str


def _envelope() -> bytes:
    return codec.encode(codec.wrap(Noted(ODD), publisher_id="p"))


def _domain_event() -> bytes:
    return DomainEvent("Noted", {"id": "1"}, {"text": ODD}).to_json()


def _task() -> bytes:
    message = outgoing(TaskMessage(request_id="r-1", name="note", input={"text": ODD}), "acme")
    return message.body if isinstance(message.body, bytes) else message.body.encode()


def _push() -> bytes:
    payload = PushPayload("title", "body", {"text": "\uffff"})
    return PushNotification("u", ("ios:" + "a" * 64,), payload, datetime(2030, 1, 1, tzinfo=UTC)).to_json().encode()


def _agent_message() -> bytes:
    data = msgspec.Raw(msgspec.json.encode({"text": ODD}))
    return Message("ann", "2030-01-01T00:00:00.000Z", "noted", data, "e-1", "bob", "1").to_json()


def _rejected() -> bytes:
    return Rejected("no", "shard", "1", ODD, "").to_json()


@pytest.mark.parametrize("make", [_envelope, _domain_event, _task, _push, _agent_message, _rejected])
def test_what_sqs_refuses_as_it_stands_travels_escaped(make: Callable[[], bytes]) -> None:
    body = make()

    assert check_text(body, "body") == body
    assert "\uffff" in json.dumps(json.loads(body), ensure_ascii=False)


def test_an_event_comes_back_as_it_was_published() -> None:
    assert codec.unwrap(codec.decode(_envelope())) == Noted(ODD)
    assert DomainEvent.from_json(_domain_event()).payload == {"text": ODD}
