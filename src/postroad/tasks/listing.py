"""The list of tasks, newest first, by state, name and time.

Each state is listed by the event that begins it: a failed task by its `Task Failed`, a running one by its last start.
Of a task that was retried only the event of its last run counts, so that it is listed once.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import merge
from typing import Final
from uuid import UUID

import msgspec

from postroad import journal
from postroad.arguments import check, duration_of, whole_number
from postroad.errors import InvalidCursor, InvalidInput, InvalidTask
from postroad.journal import STATES, Journal, JournalEvent, TaskState
from postroad.ports import Store
from postroad.settings import nearest
from postroad.tasks.leases import Lease, TaskRecords
from postroad.tasks.registry import TaskName

_BEGINS: Final = {
    "pending": (journal.PENDING,),
    "processing": (journal.STARTED,),
    "completed": (journal.COMPLETED,),
    "failed": (journal.FAILED, journal.TIMEOUT),
    "cancelled": (journal.CANCELLED,),
    # A task that was cancelled before it began has no other event.
    None: (journal.PENDING, journal.CANCELLED),
}
_MILLISECONDS: Final = re.compile(r"[0-9]{13}")
_MOST_EXAMINED: Final = 1_000
_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks to list.

    Raises:
        InvalidInput: There is no such state.
        InvalidTask: No task can have this name.
    """

    state: str | None = None
    """Only tasks in this state; by default all."""
    name: str | None = None
    """Only tasks of this name; by default all."""
    since: int | None = None
    """Only tasks that came into the state, or were submitted, at this time or later, in milliseconds."""
    until: int | None = None
    """Only tasks that did so at this time or earlier."""

    def __post_init__(self) -> None:
        check(self.name, TaskName | None, "name", InvalidTask)
        if self.state is not None and self.state not in STATES:
            raise InvalidInput(
                f"state: {self.state[:100]!r} is not one of {', '.join(STATES)}",
                field="state",
                nearest=nearest(self.state[:100], STATES),
                remedy=f"Use one of {', '.join(STATES)}.",
            )

    @property
    def digest(self) -> str:
        """A short hash of the filter; a cursor is valid for this filter only."""
        # A time that is relative to now differs from page to page.
        return hashlib.sha256(f"{self.state}\0{self.name}".encode()).hexdigest()[:16]


def since_of(given: str | int | None, now_ms: int) -> int | None:
    """Return a time in milliseconds, given as such, as ISO 8601, or as a duration before now such as 1h."""
    if given is None or isinstance(given, int):
        return given
    if _MILLISECONDS.fullmatch(given):
        return int(given)
    if (seconds := duration_of(given)) is not None:
        return now_ms - int(seconds * 1_000)
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidInput(
            f"since: {given[:100]!r} is not a time",
            field="since",
            remedy="Give a duration such as 1h, ISO 8601 such as 2030-01-31T08:00:00Z, or milliseconds since 1970.",
        ) from None
    return round((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1_000)


class ListedTask(msgspec.Struct, frozen=True):
    name: str
    queue: str
    state: TaskState


class TaskPage(msgspec.Struct, frozen=True):
    """Tasks, newest first; `cursor` is None on the last page. A page may be short, because others did not match."""

    items: list[ListedTask]
    cursor: str | None


class TaskList:
    """Lists the tasks of one tenant."""

    def __init__(self, backend: Store, *, tenant: str) -> None:
        self._journal: Journal = backend.journal()
        self._records = TaskRecords(backend)
        self._tenant = tenant

    def page(self, wanted: TaskFilter, *, limit: int = 20, cursor: str | None = None) -> TaskPage:
        """Return up to `limit` tasks, 1 to 100, after the cursor of the page before.

        Raises:
            InvalidCursor: The cursor is not one of a list with this filter.
        """
        check(limit, whole_number(1, 100), "limit")
        before = None if cursor is None else _opened(cursor, wanted)
        found: list[ListedTask] = []
        events = self._events(wanted, before)
        for examined, event in enumerate(events, 1):
            if (listed := self._listed(event, wanted)) is not None:
                found.append(listed)
            if len(found) == limit or examined == _MOST_EXAMINED:
                is_last = next(events, None) is None
                text = f"{wanted.digest}.{event.timestamp}.{event.event_id}"
                sealed = base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
                return TaskPage(found, None if is_last else sealed)
        return TaskPage(found, None)

    def every(self, wanted: TaskFilter) -> Iterator[ListedTask]:
        """Yield all tasks that match, newest first."""
        for event in self._events(wanted, None):
            if (listed := self._listed(event, wanted)) is not None:
                yield listed

    def _events(self, wanted: TaskFilter, before: tuple[int, UUID] | None) -> Iterator[JournalEvent]:
        """Yield the events with which tasks come into the state, newest first, after a place in this order."""
        end = wanted.until
        if before is not None:
            end = before[0] if end is None else min(end, before[0])
        newest = partial(journal.every_event, self._journal, "GSI4", tenant=self._tenant, descending=True, raw=True)
        types = _BEGINS[wanted.state]
        streams = (newest(event_type=each, start=wanted.since, end=end, limit=_PAGE) for each in types)
        for event in merge(*streams, key=_place, reverse=True):
            if before is None or _place(event) < before:
                yield event

    def _listed(self, event: JournalEvent, wanted: TaskFilter) -> ListedTask | None:
        """Return the task if it matches, and if this is the event by which it is listed."""
        held = self._records.read(self._tenant, event.entity_id)
        lease = Lease() if held is None else held.lease
        if lease.name and wanted.name not in (None, lease.name):
            return None
        history = journal.task_history(self._journal, self._tenant, event.entity_id, raw=True)
        state = journal.fold(history)
        if state is None or wanted.state not in (None, state.state) or not _begins(event, history, state, wanted.state):
            return None
        name = lease.name or next((str(each.properties["name"]) for each in history if "name" in each.properties), "")
        if wanted.name not in (None, name):
            return None
        if held is not None and lease.run == state.run and lease.progress is not None and state.state != "completed":
            state = msgspec.structs.replace(state, progress=lease.progress)
        return ListedTask(name, lease.queue or "tasks", state)


def _begins(event: JournalEvent, history: Sequence[JournalEvent], state: TaskState, wanted: str | None) -> bool:
    """Return whether the task is listed by this event: the end of its run, or else the last of its kind in the run."""
    types = _BEGINS[wanted]
    mine = [each for each in history if each.properties.get("run", state.run) == state.run]
    found = [each for each in mine if each.event_type in types]
    if wanted is None and any(each.event_type == journal.PENDING for each in found):
        found = [each for each in found if each.event_type == journal.PENDING]
    if not found:
        return False
    chosen = found[0] if found[0].event_type in journal.TERMINAL else found[-1]
    return chosen.event_id == event.event_id


def _place(event: JournalEvent) -> tuple[int, UUID]:
    return event.timestamp, event.event_id


def _opened(cursor: str, wanted: TaskFilter) -> tuple[int, UUID]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        digest, timestamp, event_id = text.split(".")
        place = int(timestamp), UUID(event_id)
    except ValueError:
        digest, place = "", (0, UUID(int=0))
    if digest != wanted.digest:
        raise InvalidCursor("cursor: is not a cursor of this list", field="cursor")
    return place
