"""Bodies that SNS or EventBridge put into an envelope of their own on the way, taken out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from postroad.errors import InvalidMessage
from postroad.queues.rules import MAX_ATTRIBUTES

EVENT_SOURCE = "postroad"
VERBATIM = "postroad.verbatim"
"""The attribute of a body that looks wrapped and is not: it is taken as it stands."""


def wrap_detail(body: bytes, attributes: Mapping[str, str]) -> str:
    """The `Detail` of an EventBridge entry, from which `unwrap` restores body and attributes."""
    return msgspec.json.encode({"attributes": dict(attributes), "body": body.decode()}).decode()


def kept_verbatim(body: str, attributes: Mapping[str, str]) -> Mapping[str, str]:
    """The attributes to send with a body, so that `unwrap` gives back that very body."""
    if _unwrapped(body) is None:
        return attributes
    if len(attributes) >= MAX_ATTRIBUTES:
        raise InvalidMessage(
            f"attributes: {len(attributes)} attributes; a body that looks like a notification of SNS or EventBridge "
            f"needs one of the {MAX_ATTRIBUTES} for itself",
            field="attributes",
        )
    return {**attributes, VERBATIM: "true"}


def unwrap(body: str, attributes: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """Body and attributes as they were published; a body that nobody wrapped stays as it is."""
    if VERBATIM in attributes:
        return body.encode(), {name: value for name, value in attributes.items() if name != VERBATIM}
    found = _unwrapped(body)
    return (body.encode(), attributes) if found is None else (found[0].encode(), {**found[1], **attributes})


def _unwrapped(body: str) -> tuple[str, dict[str, str]] | None:
    if body[:1] != "{" or ('"Notification"' not in body and '"detail-type"' not in body):
        return None
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
