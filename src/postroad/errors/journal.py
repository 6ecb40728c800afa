"""What the journal refuses, and what it finds changed."""

from __future__ import annotations

from uuid import UUID

from postroad.errors.refusals import InvalidInput
from postroad.errors.stores import StorageDamaged


class InvalidEvent(InvalidInput):
    """An event that is refused; the message names the field."""

    slug = "invalid-event"
    remedy = "Correct the field that the message names; the event was not stored."


class EventTooLarge(InvalidEvent):
    """An event above the limit of the journal or of agents."""

    slug = "event-too-large"
    status = 413
    remedy = "Shorten the context or the properties, or configure blobs; the event was not stored."


class InvalidQuery(InvalidInput):
    """A question that the journal cannot answer."""

    slug = "invalid-query"
    remedy = "Give exactly the arguments that the index needs, and a limit of 1 to 1000."


class OverflowMismatch(StorageDamaged):
    """The blob that holds part of an event is missing, or is not what was stored."""

    slug = "overflow-mismatch"
    remedy = "Read it with raw=True to see what the item itself holds, or restore the blob from a backup."

    def __init__(self, message: str, *, event_id: UUID | None = None) -> None:
        super().__init__(message)
        self.event_id = event_id
