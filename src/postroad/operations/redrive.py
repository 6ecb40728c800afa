"""Redrive for operators: recorded, and by the store itself where it can move a whole queue."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from postroad.errors import NotSupported
from postroad.ports import Store
from postroad.queues import (
    BoundOptions,
    Bounds,
    Destinations,
    Match,
    MoveTask,
    Progress,
    QueueStore,
    RedriveReport,
    as_movable,
    redrive as move,
)
from postroad.telemetry import get_logger, recorded

if TYPE_CHECKING:
    from postroad.queues import MoveTasks

_FASTEST = 500
_NAMED_IDS = 100


def redrive(
    backend: Store,
    dead_letter_queue: str,
    *,
    to: str | None = None,
    match: Match | None = None,
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
    progress: Progress | None = None,
) -> RedriveReport:
    """Move matching dead letters back, with a record of it. Running it again goes on where it ended.

    Where the store can move by itself it moves a whole queue, unless `native` is False; what it moves is not marked.
    """
    bounds: BoundOptions = {
        "limit": limit,
        "rate": rate,
        "canary": canary,
        "canary_wait": canary_wait,
        "stop_after": stop_after,
        "max_redrives": max_redrives,
    }
    Bounds(**bounds)
    if dry_run:
        return move(backend, dead_letter_queue, to=to, match=match, dry_run=True, **bounds)
    run_id = uuid.uuid4().hex
    record = _Record(backend, dead_letter_queue, run_id, actor, progress)
    record.detail = {"to": to, "match": _told(match), "reason": reason, **bounds}
    with record.kept():
        is_whole = match in (None, Match()) and limit is None and not canary
        report = _move_natively(backend, dead_letter_queue, to, rate, native, record) if is_whole else None
        if report is None:
            if native:
                raise NotSupported(f"queue {dead_letter_queue!r}: the store cannot do this redrive by itself")
            report = move(
                backend,
                dead_letter_queue,
                to=to,
                match=match,
                run_id=run_id,
                reason=reason,
                begin=record.begin,
                progress=record.tell,
                **bounds,
            )
        record.tell(report)
    return report


def redrive_tasks(backend: QueueStore, dead_letter_queue: str) -> list[MoveTask]:
    """The redrives of this queue that the store does by itself, the newest first; none on a store that does none."""
    moves = as_movable(backend.queue(dead_letter_queue)).native()
    return [] if moves is None else moves.tasks()


class _Record:
    """The audit of one redrive, begun right before the first message can move."""

    def __init__(self, backend: Store, queue: str, run_id: str, actor: str | None, progress: Progress | None) -> None:
        self._backend = backend
        self._queue = queue
        self._actor = actor
        self._progress = progress
        self._stack = ExitStack()
        self._done: dict[str, Any] = {}
        self._so_far: Callable[[], RedriveReport] | None = None
        self.run_id = run_id
        self.detail: dict[str, Any] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The end is written when the block ends, however it does, if there was a beginning."""
        with self._stack:
            yield

    def begin(self, so_far: Callable[[], RedriveReport] | None = None) -> None:
        """Write the start, once; without it nothing may move. `so_far` is asked when the run fails."""
        if self._done:
            self._so_far = so_far
            return
        detail = {"run_id": self.run_id, **{name: value for name, value in self.detail.items() if value is not None}}
        log = self._backend.audit_log()
        self._done = self._stack.enter_context(recorded(log, "queue.redrive", self._queue, detail, actor=self._actor))
        self._done["run_id"] = self.run_id
        self._so_far = so_far
        self._stack.push(self._count_failed)

    def _count_failed(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None and self._so_far is not None:
            self._note(self._so_far())

    def tell(self, report: RedriveReport) -> None:
        """Pass on how far it is while it runs, and remember the end."""
        if report.status != "running":
            self._note(report)
        elif self._progress is not None:
            self._progress(report)

    def _note(self, report: RedriveReport) -> None:
        self._done |= {
            "status": report.status,
            "matched": report.matched,
            "moved": report.moved,
            "returned": report.returned,
            "skipped": dict(report.skipped),
            "destinations": dict(report.destinations),
            "task_handle": report.task_handle,
        }


def _move_natively(
    backend: Store, queue: str, to: str | None, rate: float | None, native: bool | None, record: _Record
) -> RedriveReport | None:
    """Let the store move everything; None when it cannot, or when nothing tells it where to."""
    source = backend.queue(queue)
    moves = None if native is False else as_movable(source).native()
    destination = None if moves is None else Destinations(backend, queue, to).only_source()
    if moves is None or destination is None:
        return None
    record.begin()
    handle = _started(moves, destination, rate, must=native is True)
    if handle is None:
        return None
    waiting = source.stats().visible
    get_logger("queues").info(
        "queue_redriven", queue=queue, run_id=record.run_id, status="native", moved=0, reason=record.detail["reason"]
    )
    return RedriveReport(
        run_id=record.run_id,
        status="native",
        matched=waiting,
        moved=0,
        returned=0,
        skipped={},
        destinations={destination: waiting},
        task_handle=handle,
    )


def _started(moves: MoveTasks, destination: str, rate: float | None, *, must: bool) -> str | None:
    per_second = None if rate is None else max(1, min(_FASTEST, math.floor(rate)))
    try:
        return moves.start(destination, per_second=per_second)
    except NotSupported:
        if must:
            raise
        return None


def _told(match: Match | None) -> dict[str, Any] | None:
    """What was asked for, as far as the record has room for it."""
    if match is None:
        return None
    given = {
        "fingerprint": match.fingerprint,
        "key": match.key,
        "event_type": match.event_type,
        "attributes": dict(match.attributes),
        "ids": list(match.ids)[:_NAMED_IDS],
        "sent_before": None if match.sent_before is None else match.sent_before.isoformat(),
        "sent_after": None if match.sent_after is None else match.sent_after.isoformat(),
    }
    return {name: value for name, value in given.items() if value}
