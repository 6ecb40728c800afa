"""Which event it is that a session is told of."""

from __future__ import annotations

from postroad.events import uuid7
from postroad.receiving import context_of


def event_id_of(event: object) -> str:
    """The id under which the event travels, else its own; one that has none is taken for a new event each time."""
    context = context_of(event)
    if context is not None:
        return str(context.envelope.event_id)
    own = getattr(event, "event_id", None)
    return str(uuid7() if own is None else own)


def session_id_of(event: object) -> str | None:
    """The session that the event names, if any."""
    context = context_of(event)
    own = getattr(event, "session_id", None)
    found = context.envelope.session_id if own is None and context is not None else own
    return None if found is None else str(found)
