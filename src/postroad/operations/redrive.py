"""Dead letters for operators: grouped by what they died of, and moved back with an audit record."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from postroad import queues
from postroad.arguments import check, whole_number
from postroad.errors import NotSupported
from postroad.ports import Store
from postroad.telemetry import get_logger, recorded

_FASTEST = 500
_NAMED_IDS = 100
_SAMPLES = 5
_PAGE = 500
_MOST_RECEIVED = 10_000
"""How many messages are read by default where peeking is receiving."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Dead letters with the same cause.

    Attributes:
        fingerprint: What identifies the group.
        event_type: The type of the events.
        error: The error of the first one; None if none was recorded.
        count: How many there are.
        first_sent_at: When the oldest was sent.
        last_sent_at: When the newest was sent.
        sample_ids: The ids of some of them.
    """

    fingerprint: str
    event_type: str | None
    error: str | None
    count: int
    first_sent_at: datetime
    last_sent_at: datetime
    sample_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The groups of a queue.

    Attributes:
        groups: The groups, largest first.
        scanned: How many messages were read.
        complete: Whether all messages of the queue were read.
        cursor: Where the next call goes on; None at the end, and where peeking is receiving.
    """

    groups: tuple[FailureGroup, ...]
    scanned: int
    complete: bool
    cursor: str | None = None


def failure_groups(
    backend: queues.QueueStore, queue: str, *, limit: int | None = None, cursor: str | None = None
) -> FailureGroups:
    """Group the messages of a queue by what they died of. This changes nothing.

    On SQS peeking is receiving: messages are hidden until the call returns.

    Args:
        backend: The store that holds the queue.
        queue: The name of the dead-letter queue.
        limit: The most messages to read; by default all, on SQS 10,000.
        cursor: The cursor of an earlier call, to read what follows; None begins with the oldest message.

    Raises:
        NotSupported: Peeking counts as receiving, and would move messages of this queue to its dead letters.

    Example:
        for group in failure_groups(backend, "orders-dlq").groups:
            print(group.count, group.error)
    """
    if limit is not None:
        check(limit, whole_number(1), "limit")
    source = backend.queue(queue)
    if not source.traits.peeks_clean and backend.queue_spec(queue).dead_letter is not None:
        raise NotSupported(
            f"queue {queue!r}: looking at it counts as receiving: often enough, it sends messages to the dead letters",
            remedy="Group its dead-letter queue instead.",
        )
    groups: dict[str, FailureGroup] = {}
    scanned, following = 0, None
    for looked in _pages(source, limit, cursor):
        scanned, following = scanned + len(looked.messages), looked.cursor
        for message in looked.messages:
            name = queues.failure(message)
            groups[name] = _joined(groups.get(name) or _begun(name, message), message)
    found = sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint))
    kept = following if source.traits.peeks_clean else None
    return FailureGroups(tuple(found), scanned, complete=following is None, cursor=kept)


def _pages(queue: queues.Queue, limit: int | None, cursor: str | None) -> Iterator[queues.Looked]:
    if limit is None and not queue.traits.peeks_clean:
        limit = _MOST_RECEIVED
    source, left = queues.as_movable(queue), limit
    try:
        while left is None or left > 0:
            looked = source.look(cursor=cursor, limit=_PAGE if left is None else min(_PAGE, left))
            yield looked
            if (cursor := looked.cursor) is None:
                return
            left = None if left is None else left - len(looked.messages)
    finally:
        source.stop(cursor)


def _begun(fingerprint: str, first: queues.PeekedMessage) -> FailureGroup:
    dead = queues.read_dead(first.attributes)
    error = None if dead is None else dead.error
    return FailureGroup(fingerprint, queues.event_type(first), error, 0, first.sent_at, first.sent_at, ())


def _joined(group: FailureGroup, message: queues.PeekedMessage) -> FailureGroup:
    return replace(
        group,
        count=group.count + 1,
        first_sent_at=min(group.first_sent_at, message.sent_at),
        last_sent_at=max(group.last_sent_at, message.sent_at),
        sample_ids=(*group.sample_ids, message.message_id)[:_SAMPLES],
    )


def redrive(
    backend: Store,
    dead_letter_queue: str,
    *,
    to: str | None = None,
    match: queues.Match | None = None,
    limit: int | None = None,
    rate: float | None = None,
    canary: int = 0,
    canary_wait: float = 60.0,
    stop_after: int = 5,
    max_redrives: int = 3,
    dry_run: bool = False,
    native: bool | None = None,
    reason: str = "",
    actor: str | None = None,
    progress: queues.Progress | None = None,
    run_id: str | None = None,
    each_step: queues.EachStep | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> queues.RedriveReport:
    """Move matching dead letters back, with an audit record. Running it again continues where it ended.

    Args:
        backend: The store that holds the queues.
        dead_letter_queue: The queue to move messages from.
        to: The queue to move them to; by default each goes back to the queue it came from.
        match: Which messages to move, by default all.
        limit: The most messages to move, by default any number.
        rate: The most messages a second, by default any number.
        canary: How many messages to move first; the rest follow only if none of these comes back.
        canary_wait: Seconds to wait for the canary, by default 60.
        stop_after: Stop when so many moved messages have come back, by default 5.
        max_redrives: Leave messages that were moved back so often before, by default 3.
        dry_run: Only count what would move.
        native: True to let SQS move the whole queue by itself, which marks and counts nothing; False to prevent it. By
            default SQS does so if the whole queue is to be moved.
        reason: Why, for the audit record.
        actor: Who, for the audit record; by default `$POSTROAD_ACTOR` or the user.
        progress: A function that is called with the report so far.
        run_id: The id that marks the moved messages, by default a new one. A run that continues another one under its
            id does not move again what came back.
        each_step: Called with each step, to run it and store what it did in the same transaction.
        sleep: How to wait, by default `time.sleep`; it may raise to end the run.

    Raises:
        AmbiguousSource: It is not known where a message came from, and `to` is not given.
        NotSupported: `native` is True and the store cannot do this redrive by itself.
        RedriveRunning: The store is already moving the messages of this queue.

    Example:
        redrive(backend, "orders-dlq", canary=2, reason="fixed in 1.4")
    """
    bounds: queues.BoundOptions = {
        "limit": limit,
        "rate": rate,
        "canary": canary,
        "canary_wait": canary_wait,
        "stop_after": stop_after,
        "max_redrives": max_redrives,
    }
    queues.Bounds(**bounds)
    if dry_run:
        return queues.redrive(backend, dead_letter_queue, to=to, match=match, dry_run=True, **bounds)
    detail = {
        "run_id": uuid.uuid4().hex if run_id is None else run_id,
        "to": to,
        "match": _fields(match),
        "reason": reason,
        **bounds,
    }
    record = _Record(backend, dead_letter_queue, detail, actor, progress)
    with record.stack:
        is_whole = match in (None, queues.Match()) and limit is None and not canary
        report = _move_natively(backend, dead_letter_queue, to, rate, native, record) if is_whole else None
        if report is None:
            if native:
                raise NotSupported(f"queue {dead_letter_queue!r}: the store cannot do this redrive by itself")
            report = queues.redrive(
                backend,
                dead_letter_queue,
                to=to,
                match=match,
                run_id=record.run_id,
                reason=reason,
                begin=record.begin,
                progress=record.report,
                each_step=each_step,
                sleep=sleep,
                **bounds,
            )
        record.report(report)
    return report


def redrive_tasks(backend: queues.QueueStore, dead_letter_queue: str) -> list[queues.MoveTask]:
    """Return the redrives of this queue that the store does by itself, newest first; none on most stores.

    Args:
        backend: The store.
        dead_letter_queue: The name of the queue.
    """
    moves = queues.as_movable(backend.queue(dead_letter_queue)).native()
    return [] if moves is None else moves.tasks()


class _Record:
    """The audit record of one redrive, begun right before the first message can move."""

    def __init__(
        self, backend: Store, queue: str, detail: dict[str, Any], actor: str | None, progress: queues.Progress | None
    ) -> None:
        self._backend = backend
        self._queue = queue
        self._detail = {name: value for name, value in detail.items() if value is not None}
        self._actor = actor
        self._progress = progress
        self._done: dict[str, Any] = {}
        self._so_far: Callable[[], queues.RedriveReport] | None = None
        self.run_id: str = detail["run_id"]
        self.reason: str = detail["reason"]
        self.stack = ExitStack()
        """Writes the end of the record when it is closed, if the start was written."""

    def begin(self, so_far: Callable[[], queues.RedriveReport] | None = None) -> None:
        """Write the start, once; without it nothing may move. `so_far` is called if the run fails."""
        self._so_far = so_far
        if not self._done:
            log = self._backend.audit_log()
            started = recorded(log, "queue.redrive", self._queue, self._detail, actor=self._actor)
            self._done = self.stack.enter_context(started)
            self._done["run_id"] = self.run_id
            self.stack.push(self._count_failed)

    def _count_failed(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None and self._so_far is not None:
            self._done |= msgspec.to_builtins(self._so_far())

    def report(self, report: queues.RedriveReport) -> None:
        """Pass on the progress, and note the final counts."""
        if report.status != "running":
            self._done |= msgspec.to_builtins(report)
        elif self._progress is not None:
            self._progress(report)


def _move_natively(
    backend: Store, queue: str, to: str | None, rate: float | None, native: bool | None, record: _Record
) -> queues.RedriveReport | None:
    """Let the store move everything; return None if it cannot, or if the destination is not known."""
    source = backend.queue(queue)
    moves = None if native is False else queues.as_movable(source).native()
    destination = None if moves is None else queues.Destinations(backend, queue, to).only_source()
    if moves is None or destination is None:
        return None
    record.begin()
    try:
        per_second = None if rate is None else max(1, min(_FASTEST, math.floor(rate)))
        handle = moves.start(destination, per_second=per_second)
    except NotSupported:
        if native:
            raise
        return None
    waiting = source.stats().visible
    get_logger("queues").info(
        "queue_redriven", queue=queue, run_id=record.run_id, status="native", moved=0, reason=record.reason
    )
    return queues.RedriveReport(
        run_id=record.run_id,
        status="native",
        matched=waiting,
        moved=0,
        returned=0,
        skipped={},
        destinations={destination: waiting},
        task_handle=handle,
    )


def _fields(match: queues.Match | None) -> dict[str, Any] | None:
    """Return what is set in the match, with as many ids as the audit record has room for."""
    if match is None:
        return None
    shortened = {"attributes": dict(match.attributes), "ids": list(match.ids)[:_NAMED_IDS]}
    given = msgspec.to_builtins(msgspec.structs.replace(match, **shortened))
    return {name: value for name, value in given.items() if value}
