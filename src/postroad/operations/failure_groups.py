"""A thousand dead letters read as three problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from postroad.arguments import check, whole_number
from postroad.errors import NotSupported
from postroad.queues import PeekedMessage, Queue, QueueStore, as_movable, event_type, failure, read_dead

_SAMPLES = 5
_PAGE = 500
_MOST_RECEIVED = 10_000
"""How many messages are looked at by default where a look is a receive."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead letters that died of one thing. `error` is that of the first one; None when none was recorded."""

    fingerprint: str
    event_type: str | None
    error: str | None
    count: int
    first_sent_at: datetime
    last_sent_at: datetime
    sample_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The groups, the largest first. Not `complete`: there are messages that were not looked at."""

    groups: tuple[FailureGroup, ...]
    scanned: int
    complete: bool


def failure_groups(backend: QueueStore, queue: str, *, limit: int | None = None) -> FailureGroups:
    """Group what the queue holds by what it died of, looking at `limit` messages at the most. It changes nothing.

    On SQS looking is receiving: messages are hidden until the look ends, and `limit` is 10,000 unless given.
    """
    if limit is not None:
        check(limit, whole_number(1), "limit")
    source = backend.queue(queue)
    if not source.traits.peeks_clean and backend.queue_spec(queue).dead_letter is not None:
        raise NotSupported(
            f"queue {queue!r}: looking at it counts as receiving: often enough, it sends messages to the dead letters",
            remedy="Group its dead-letter queue instead.",
        )
    groups: dict[str, _Group] = {}
    scanned = 0
    complete = True
    for messages, is_last in _pages(source, limit):
        scanned += len(messages)
        complete = is_last
        for message in messages:
            groups.setdefault(failure(message), _Group(message)).add(message)
    found = sorted((group.shown(name) for name, group in groups.items()), key=_largest_first)
    return FailureGroups(tuple(found), scanned, complete)


def _pages(queue: Queue, limit: int | None) -> Iterator[tuple[list[PeekedMessage], bool]]:
    """The messages in parts, each with whether it ends the queue."""
    if limit is None and not queue.traits.peeks_clean:
        limit = _MOST_RECEIVED
    source, cursor, left = as_movable(queue), None, limit
    try:
        while left is None or left > 0:
            looked = source.look(cursor=cursor, limit=_PAGE if left is None else min(_PAGE, left))
            yield list(looked.messages), looked.cursor is None
            if (cursor := looked.cursor) is None:
                return
            left = None if left is None else left - len(looked.messages)
    finally:
        source.stop(cursor)


class _Group:
    """A group that grows."""

    def __init__(self, first: PeekedMessage) -> None:
        dead = read_dead(first.attributes)
        self._type = event_type(first)
        self._error = None if dead is None else dead.error
        self._count = 0
        self._first = self._last = first.sent_at
        self._samples: list[str] = []

    def add(self, message: PeekedMessage) -> None:
        """Count one more."""
        self._count += 1
        self._first, self._last = min(self._first, message.sent_at), max(self._last, message.sent_at)
        if len(self._samples) < _SAMPLES:
            self._samples.append(message.message_id)

    def shown(self, fingerprint: str) -> FailureGroup:
        """The group as it is now."""
        return FailureGroup(
            fingerprint, self._type, self._error, self._count, self._first, self._last, tuple(self._samples)
        )


def _largest_first(group: FailureGroup) -> tuple[int, str]:
    return -group.count, group.fingerprint
