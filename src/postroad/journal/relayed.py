"""A journal that is written through a sender and read where the events arrive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from postroad.errors import NotSupported
from postroad.journal.event import JournalEvent
from postroad.journal.feed import Followed, Follows
from postroad.journal.port import AppendResult, Appends, Journal, Page
from postroad.journal.pruning import Removes


class RelayedJournal:
    """Appends go the long way; an event is seen by reads once it has arrived."""

    def __init__(self, journal: Journal, sender: Appends) -> None:
        self._journal = journal
        self._sender = sender

    def init(self) -> None:
        """Make the storage where it is missing, or say how it differs from what is needed."""
        self._journal.init()

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        """Hand each event to the sender."""
        return self._sender.append(events)

    @property
    def keeps_days(self) -> int | None:
        """After how many days somebody has to remove an event, where the events arrive; None: nobody has to."""
        return self._journal.keeps_days if isinstance(self._journal, Removes) else None

    def remove(self, events: Sequence[JournalEvent]) -> None:
        """Forget these events where they arrived."""
        if not isinstance(self._journal, Removes):
            raise NotSupported("this journal cannot forget events")
        self._journal.remove(events)

    def follow(self, tenant: str, event_types: Collection[str], position: str | None) -> Followed:
        """Return the next events of these types behind the position, as they arrive."""
        if not isinstance(self._journal, Follows):
            raise NotSupported("this journal cannot be followed")
        return self._journal.follow(tenant, event_types, position)

    def query(self, index: str, **asked: Any) -> Page:
        """A page of one index of what has arrived."""
        return self._journal.query(index, **asked)

    def latest(self, tenant: str, entity_type: str, entity_id: str) -> JournalEvent | None:
        """The last event of an entity that has arrived, or None."""
        return self._journal.latest(tenant, entity_type, entity_id)
