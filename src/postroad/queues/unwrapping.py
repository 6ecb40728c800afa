"""Bodies that SNS or EventBridge put into an envelope of their own on the way, taken out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

EVENT_SOURCE = "postroad"


def wrap_detail(body: bytes, attributes: Mapping[str, str]) -> str:
    """The `Detail` of an EventBridge entry, from which `unwrap` restores body and attributes."""
    return msgspec.json.encode({"attributes": dict(attributes), "body": body.decode()}).decode()


def unwrap(body: str, attributes: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """Body and attributes as they were published; a body that nobody wrapped stays as it is."""
    if body[:1] == "{" and ('"Notification"' in body or '"detail-type"' in body):
        found = _unwrapped(body)
        if found is not None:
            return found[0].encode(), {**found[1], **attributes}
    return body.encode(), attributes


def _unwrapped(body: str) -> tuple[str, dict[str, str]] | None:
    try:
        outer = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    if not isinstance(outer, dict):
        return None
    return _from_sns(outer) or _from_eventbridge(outer)


def _from_sns(outer: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    message = outer.get("Message")
    if outer.get("Type") != "Notification" or "TopicArn" not in outer or not isinstance(message, str) or not message:
        return None
    attributes = outer.get("MessageAttributes") or {}
    return message, {name: entry["Value"] for name, entry in attributes.items() if _is_value(entry)}


def _is_value(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("Value"), str)


def _from_eventbridge(outer: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    detail = outer.get("detail")
    if "detail-type" not in outer or "source" not in outer or not isinstance(detail, dict):
        return None
    body, attributes = detail.get("body"), detail.get("attributes")
    if detail.keys() == {"body", "attributes"} and isinstance(body, str) and body and isinstance(attributes, dict):
        return body, {name: value for name, value in attributes.items() if isinstance(value, str)}
    if "event_type" in detail and "payload" in detail:
        # An envelope that was put onto the bus as it is.
        return msgspec.json.encode(detail).decode(), {}
    return None
