"""The journal in documents: events without their keys, in pages that name the index they came from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from postroad.errors import InvalidQuery
from postroad.journal import JournalEvent, Page
from postroad.journal.keys import KEY_NAMES
from postroad.journal.port import Entity


def event_item(event: JournalEvent) -> dict[str, Any]:
    """The event's item; where part of it could not be read, with the reason."""
    item = event.to_item()
    return item if event.overflow_error is None else {**item, "overflow_error": event.overflow_error}


def journal_item(event: JournalEvent) -> dict[str, Any]:
    """The event's item without its keys, with what only they tell."""
    item = {name: value for name, value in event_item(event).items() if name not in KEY_NAMES}
    return {"event_id": str(event.event_id), "app": event.app, **item}


def timeline(index: str, page: Page) -> dict[str, Any]:
    """A page of the journal."""
    return {"index": index, "items": [journal_item(event) for event in page.events], "next_cursor": page.cursor}


def entity_of(text: str | None) -> Entity | None:
    """`TASK#req-123` as a pair."""
    if text is None:
        return None
    kind, mark, name = text.partition("#")
    if not mark:
        raise InvalidQuery(f"entity: {text!r} is not a type and an id", field="entity", remedy="Write TASK#req-123.")
    return kind, name


def moment_of(text: str | None, field: str) -> int | None:
    """A moment in milliseconds: a number of them, or ISO 8601 in UTC unless it names its zone."""
    if text is None:
        return None
    if text.lstrip("-").isdecimal() and text.isascii():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidQuery(
            f"{field}: {text!r} is not a moment", field=field,
            remedy="Give milliseconds since 1970, or ISO 8601 such as 2030-01-01T00:00:00Z.",
        ) from None  # fmt: skip
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)
