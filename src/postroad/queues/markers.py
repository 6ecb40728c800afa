"""The two attributes Postroad adds: `DeadLetter` on the way out, `Redrive` on the way back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from postroad.errors import InvalidMessage
from postroad.queues.rules import MAX_ATTRIBUTES
from postroad.telemetry import redact

DEAD_LETTER = "DeadLetter"
REDRIVE = "Redrive"
MAX_ERROR = 500
_MOST_READ = 4_000
_LONGEST_PLACE = 200
_PLACE = re.compile(r" \[[^\[\]]+:[^\[\]:]+\]\Z")
_REDRIVE = re.compile(r"(\d{1,9}):([A-Za-z0-9-]{1,64})")


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=False):
    """Why a message is a dead letter."""

    source: str
    receives: int
    error: str | None
    type: str | None
    at: str | None
    reason: str | None = None


def mark_dead(
    attributes: Mapping[str, str],
    *,
    source: str,
    receives: int,
    error: str | None,
    at: datetime,
    reason: str | None = None,
) -> dict[str, str]:
    """The attributes of a dead letter; without room for the marker they stay as they are.

    `Redrive` stays, so that a message that comes back is known to the run that sent it.
    """
    marker = DeadLetter(
        source=source,
        receives=receives,
        error=None if error is None else legible(error),
        type=attributes.get("EventType"),
        at=at.isoformat(),
        reason=None if reason is None else legible(reason),
    )
    return _with(attributes, DEAD_LETTER, msgspec.json.encode(marker).decode())


def mark_moved(attributes: Mapping[str, str], *, source: str, receives: int) -> dict[str, str]:
    """The attributes of a dead letter that the store's own policy moved: without error and time."""
    marker = DeadLetter(source=source, receives=receives, error=None, type=attributes.get("EventType"), at=None)
    return _with(attributes, DEAD_LETTER, msgspec.json.encode(marker).decode())


def read_dead(attributes: Mapping[str, str]) -> DeadLetter | None:
    """The marker of a dead letter; one that is not ours counts as absent."""
    try:
        return msgspec.json.decode(attributes[DEAD_LETTER], type=DeadLetter)
    except (KeyError, msgspec.DecodeError):
        return None


def mark_redriven(attributes: Mapping[str, str], run_id: str) -> dict[str, str]:
    """The attributes of a redriven message: how often it was redriven, and by which run last."""
    count = redrives(attributes) + 1
    return _with(attributes, REDRIVE, f"{count}:{run_id}", instead_of=DEAD_LETTER)


def redrives(attributes: Mapping[str, str]) -> int:
    """How often a message was redriven before."""
    match = _redrive(attributes)
    return 0 if match is None else int(match[1])


def redriven_by(attributes: Mapping[str, str]) -> str | None:
    """The run that redrove a message last."""
    match = _redrive(attributes)
    return None if match is None else match[2]


def _redrive(attributes: Mapping[str, str]) -> re.Match[str] | None:
    return _REDRIVE.fullmatch(attributes[REDRIVE]) if REDRIVE in attributes else None


def legible(text: str) -> str:
    """At most 500 characters of it, secrets hidden and control characters replaced: any attribute can carry it.

    Of a long error the place where it was raised is kept, since that is what tells failures apart.
    """
    clean = "".join(c if c.isprintable() else " " for c in redact(text[:_MOST_READ] + _place(text[_MOST_READ:])))
    if len(clean) > MAX_ERROR:
        place = _place(clean)
        clean = clean[: MAX_ERROR - len(place)] + place
    return clean.encode("utf-8", "replace").decode()


def _place(text: str) -> str:
    """` [file:function]` at the end, if it is there."""
    found = _PLACE.search(text, max(0, len(text) - _LONGEST_PLACE))
    return "" if found is None else found[0]


def _with(attributes: Mapping[str, str], name: str, value: str, *, instead_of: str | None = None) -> dict[str, str]:
    marked = {key: kept for key, kept in attributes.items() if key not in (name, instead_of)}
    if len(marked) < MAX_ATTRIBUTES:
        marked[name] = value
    return marked


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
