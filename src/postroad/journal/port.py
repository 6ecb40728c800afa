"""The journal: what happened to tasks and jobs, appended once and read in eight orders.

Leases, dispatch markers and job items are no events: they are `Items` (`backend.items()`) of the same tenant, and on
DynamoDB they lie in the same table. The key `f"{tenant}/LEASE#TASK#{request_id}"` becomes `PK = TENANT#{tenant}`,
`SK = LEASE#TASK#{request_id}`, and `f"{tenant}/JOB#{job_id}"` becomes `SK = JOB#{job_id}`. They carry no index keys,
and the index `PK` reads `TIMESTAMP#` rows only, so neither is ever seen as an event. The fields of a lease (owner,
effectiveUntil, token, attempts, run, sentAt, outcome) or of a job (status, total) are the item's JSON value; its
`version` is the condition of the next write. Where `items().traits.joins_writes`, an append and a write of items
inside `backend.transaction()` commit together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable
from uuid import UUID

import msgspec

from postroad.errors import PostroadError
from postroad.journal.event import JournalEvent

Entity = tuple[str, str]
"""The type and the id of an entity: `("TASK", "req-123")`."""


class AppendResult(msgspec.Struct, frozen=True):
    """What became of one event. `duplicate`: it was stored before, and stays as it was."""

    event_id: UUID
    ok: bool
    duplicate: bool = False
    error: PostroadError | None = None


class Page(msgspec.Struct, frozen=True):
    """Events in the order asked for; `cursor` is None on the last page."""

    events: list[JournalEvent]
    cursor: str | None


@runtime_checkable
class Appends(Protocol):
    """Where events go: a journal, or a sender on the way to one."""

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        """Take each event once, durably. One that is refused fails alone."""
        ...


@runtime_checkable
class Journal(Appends, Protocol):
    """An append-only journal. Every order is (timestamp, event id); a read sees one tenant only."""

    def init(self) -> None:
        """Make the storage where it is missing, or say how it differs from what is needed."""
        ...

    def query(
        self,
        index: str,
        *,
        tenant: str,
        entity: Entity | None = None,
        app: str | None = None,
        event_type: str | None = None,
        start: int | None = None,
        end: int | None = None,
        descending: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        raw: bool = False,
    ) -> Page:
        """A page of one index: `PK`, or `GSI1` to `GSI7` with what they need. `raw` leaves blobs where they are.

        An event whose blob is missing or altered says so in `overflow_error`; the others of its page are whole.
        """
        ...

    def latest(self, tenant: str, entity_type: str, entity_id: str) -> JournalEvent | None:
        """The last event of an entity, or None."""
        ...
