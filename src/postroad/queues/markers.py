"""What dead letters say: the attributes `DeadLetter` and `Redrive`, and the fingerprints of their failures."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from postroad.queues.rules import MAX_ATTRIBUTES
from postroad.telemetry import redact

DEAD_LETTER = "DeadLetter"
REDRIVE = "Redrive"
MAX_ERROR = 500
TRACEBACK = "\nTraceback (most recent call last):\n"
"""What comes behind this in an error is its traceback."""
TRACEBACK_LINES = 20
_TRACEBACK_COLUMNS = 200
_MOST_READ = 4_000
_LONGEST_PLACE = 200
_PLACE = re.compile(r" \[[^\[\]]+:[^\[\]:]+\]\Z")
_REDRIVE = re.compile(r"(\d{1,9}):([A-Za-z0-9-]{1,64})")
_TYPE = re.compile(r"[A-Za-z_][\w.]*")
_AT = re.compile(r"[^\[\]]+:[A-Za-z_<][\w<>.]*")
_VARYING = re.compile(
    r"""(?<!\w)'.*?'(?!\w)|(?<!\w)".*?"(?!\w)                              # quoted text
    |[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}                   # a UUID
    |\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{4,}\b|\b[0-9a-fA-F]{8,}\b   # a run of hexadecimal digits
    |\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?                                      # a number
    """,
    re.VERBOSE | re.DOTALL,
)


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=False):
    """Why a message is a dead letter.

    Attributes:
        source: The queue in which it died.
        receives: How often it was received.
        error: The error of the last attempt.
        type: The event type.
        at: When it died.
        reason: A word for the cause, such as `handler_failed`.
    """

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
    at: datetime | None,
    reason: str | None = None,
) -> dict[str, str]:
    """Return the attributes of a dead letter, without a marker if there is no room for one.

    Error and time are None for one that the store's own policy moved. `Redrive` stays, so that a run recognises a
    message that it moved and that came back.
    """
    marker = DeadLetter(
        source=source,
        receives=receives,
        error=None if error is None else legible(error),
        type=attributes.get("EventType"),
        at=None if at is None else at.isoformat(),
        reason=None if reason is None else legible(reason),
    )
    return _with(attributes, DEAD_LETTER, msgspec.json.encode(marker).decode())


def read_dead(attributes: Mapping[str, str]) -> DeadLetter | None:
    """Return the marker of a dead letter; None if there is none that Postroad wrote."""
    try:
        return msgspec.json.decode(attributes[DEAD_LETTER], type=DeadLetter)
    except (KeyError, msgspec.DecodeError):
        return None


def mark_redriven(attributes: Mapping[str, str], run_id: str) -> dict[str, str]:
    """Return the attributes of a redriven message, which say how often it was redriven and by which run last."""
    count = redrives(attributes) + 1
    return _with(attributes, REDRIVE, f"{count}:{run_id}", instead_of=DEAD_LETTER)


def redrives(attributes: Mapping[str, str]) -> int:
    """Return how often a message was redriven before."""
    match = _redrive(attributes)
    return 0 if match is None else int(match[1])


def redriven_by(attributes: Mapping[str, str]) -> str | None:
    """Return the run that redrove a message last."""
    match = _redrive(attributes)
    return None if match is None else match[2]


def _redrive(attributes: Mapping[str, str]) -> re.Match[str] | None:
    return _REDRIVE.fullmatch(attributes[REDRIVE]) if REDRIVE in attributes else None


def legible(text: str) -> str:
    """Return at most 500 characters of the text, secrets hidden and control characters replaced, for an attribute.

    A traceback behind it is left out. The place where a long error was raised is kept, since it distinguishes failures.
    """
    text = text.partition(TRACEBACK)[0]
    clean = "".join(c if c.isprintable() else " " for c in redact(text[:_MOST_READ] + _place(text[_MOST_READ:])))
    if len(clean) > MAX_ERROR:
        place = _place(clean)
        clean = clean[: MAX_ERROR - len(place)] + place
    return clean.encode("utf-8", "replace").decode()


def traceback_of(error: str | None) -> str | None:
    """Return the last lines of the traceback behind an error, secrets hidden; None if there is none."""
    lines = redact((error or "").partition(TRACEBACK)[2]).splitlines()[-TRACEBACK_LINES:]
    shown = ["".join(c if c.isprintable() else " " for c in line[:_TRACEBACK_COLUMNS]).rstrip() for line in lines]
    return "\n".join(shown).encode("utf-8", "replace").decode() or None


def _place(text: str) -> str:
    """Return ` [file:function]` from the end of the text, or nothing."""
    found = _PLACE.search(text, max(0, len(text) - _LONGEST_PLACE))
    return "" if found is None else found[0]


def _with(attributes: Mapping[str, str], name: str, value: str, *, instead_of: str | None = None) -> dict[str, str]:
    marked = {key: kept for key, kept in attributes.items() if key not in (name, instead_of)}
    if len(marked) < MAX_ATTRIBUTES:
        marked[name] = value
    return marked


def fingerprint(error: str | None, event_type: str | None = None) -> str:
    """Return one short name for failures that are alike, so that a thousand dead letters read as three problems.

    Args:
        error: The error as `ExcType: message [file:function]`. Without a place, its text less what varies counts.
        event_type: The type of the event, which is part of the fingerprint.
    """
    kind, message, place = _parts(error or "")
    where = place or _VARYING.sub("?", message)
    # A separator that no text contains keeps ("a", "bc") and ("ab", "c") apart.
    text = "\x00".join((event_type or "", kind, where))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _parts(error: str) -> tuple[str, str, str]:
    """Return class, message and place of `ExcType: message [file:function]`; any other text is all message."""
    head, bracket, tail = error.rpartition(" [")
    place = tail[:-1] if bracket and tail.endswith("]") and _AT.fullmatch(tail, 0, len(tail) - 1) else ""
    kind, _, message = (head if place else error).partition(": ")
    if _TYPE.fullmatch(kind) is None:
        return "", error, ""
    return kind, message, place
