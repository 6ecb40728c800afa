"""The two attributes Postroad adds: `DeadLetter` on the way out, `Redrive` on the way back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from postroad.queues.rules import MAX_ATTRIBUTES
from postroad.telemetry.text import redact

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
