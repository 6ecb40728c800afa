"""What SNS and EventBridge wrap around a body is taken off again."""

from __future__ import annotations

import json

import pytest

from postroad.queues.sqs.wire import unwrap, wrap_detail

NOTIFICATION = {
    "Type": "Notification",
    "MessageId": "m",
    "TopicArn": "arn:aws:sns:us-east-1:123456789012:news",
    "Message": "the body é",
    "MessageAttributes": {
        "EventType": {"Type": "String", "Value": "Placed"},
        "odd": {"Type": "Binary", "Value": None},
    },
}
EVENT = {"version": "0", "id": "e", "detail-type": "Placed", "source": "postroad", "account": "123456789012"}
ENVELOPE = {"event_type": "Placed", "event_id": "1", "payload": {"n": 1}}


def test_a_notification_of_sns_is_its_message_with_its_attributes() -> None:
    assert unwrap(json.dumps(NOTIFICATION), {}) == ("the body é".encode(), {"EventType": "Placed"})


def test_attributes_of_the_message_itself_go_before_those_inside() -> None:
    _, attributes = unwrap(json.dumps(NOTIFICATION), {"EventType": "Paid", "DeadLetter": "{}"})

    assert attributes == {"EventType": "Paid", "DeadLetter": "{}"}


def test_a_detail_is_unwrapped_as_it_was_wrapped() -> None:
    detail = json.loads(wrap_detail('{"é": "\\""}'.encode(), {"k": "v"}))

    assert unwrap(json.dumps({**EVENT, "detail": detail}), {}) == ('{"é": "\\""}'.encode(), {"k": "v"})


def test_an_envelope_as_detail_is_the_envelope() -> None:
    body, attributes = unwrap(json.dumps({**EVENT, "detail": ENVELOPE}), {})

    assert json.loads(body) == ENVELOPE
    assert attributes == {}


@pytest.mark.parametrize(
    "body",
    [
        "plain",
        "{",
        '["Notification"]',
        '{"say": "\\"Notification\\" and \\"detail-type\\""}',
        json.dumps({**NOTIFICATION, "Type": "SubscriptionConfirmation", "x": "Notification"}),
        json.dumps({**NOTIFICATION, "Message": 7}),
        json.dumps({**EVENT, "detail": {"state": "running"}}),
        json.dumps({**EVENT, "detail": {"body": 1, "attributes": {}}}),
        json.dumps({**EVENT, "detail": "text"}),
    ],
)
def test_what_nobody_wrapped_stays_as_it_is(body: str) -> None:
    assert unwrap(body, {"k": "v"}) == (body.encode(), {"k": "v"})
