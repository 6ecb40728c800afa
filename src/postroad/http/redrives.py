"""Redrives as operations: a server that continues one moves what is left, and counts what was moved before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import msgspec

from postroad.errors import AmbiguousSource
from postroad.http.forms import Redrive
from postroad.http.operations import INTERRUPTED, OperationRun
from postroad.operations import Match, RedriveReport, redrive
from postroad.queues import Bounds, Destinations, MoveStep
from postroad.views import open_queue
from postroad.wiring import Backend

KIND = "queue.redrive"


def preview(backend: Backend, queue: str, wanted: Redrive) -> RedriveReport:
    """Count what would move, and change nothing."""
    check(backend, queue, wanted)
    return redrive(backend, queue, dry_run=True, **_chosen(wanted))


def check(backend: Backend, queue: str, wanted: Redrive) -> dict[str, Any]:
    """Return the redrive as an operation stores it; refuse wrong bounds and destinations that cannot be."""
    for name in filter(None, (queue, wanted.to)):
        open_queue(backend, name)
    Bounds(limit=wanted.limit, rate=wanted.rate, canary=wanted.canary)
    try:
        Destinations(backend, queue, wanted.to).refuse_if_unused()
    except AmbiguousSource:
        # Its messages may say where they came from.
        redrive(backend, queue, dry_run=True, **_chosen(wanted))
    return {"queue": queue, "wanted": msgspec.to_builtins(wanted)}


def work(backend: Backend, run: OperationRun) -> Mapping[str, Any]:
    """Move what the operation names."""
    wanted = msgspec.convert(run.params["wanted"], Redrive)
    before = _Moved(run, backend)
    left = None if wanted.limit is None else max(0, wanted.limit - before.total)
    if left == 0:
        nothing = RedriveReport(
            run_id=run.id, status="limit", matched=0, moved=0, returned=0, skipped={}, destinations={}
        )
        return _as_document(before.added_to(nothing))

    def wait(seconds: float) -> None:
        if run.stop.wait(seconds):
            raise _Interrupted

    try:
        report = redrive(
            backend,
            run.params["queue"],
            **{**_chosen(wanted), "limit": left},
            # The store's own redrive could neither be counted nor continued.
            native=False,
            reason=wanted.reason,
            actor=run.actor,
            run_id=run.id,
            progress=before.show,
            each_step=before.step,
            sleep=wait,
        )
    except _Interrupted:
        return {"status": INTERRUPTED}
    before.show(report)
    return _as_document(before.added_to(report))


class _Interrupted(Exception):
    """The server stops."""


class _Moved:
    """What an operation has moved, by destination: stored in the transaction of each step."""

    def __init__(self, run: OperationRun, backend: Backend) -> None:
        self._run = run
        self._backend = backend
        stored = run.read_progress()
        self._before: Counter[str] = Counter({} if stored is None else msgspec.json.decode(stored, type=dict[str, int]))
        self._now = self._before.copy()

    @property
    def total(self) -> int:
        """How many earlier servers have moved."""
        return self._before.total()

    def step(self, take: Callable[[], MoveStep]) -> MoveStep:
        """Run a step, and store what it moved if and only if it is committed."""
        with self._backend.transaction() if self._backend.joins_writes else nullcontext():
            step = take()
            now = self._now + Counter(to for _, to in step.moved)
            if step.moved:
                self._run.write_progress(msgspec.json.encode(now))
        self._now = now
        return step

    def show(self, report: RedriveReport) -> None:
        """Count what was moved so far; end the run if the server stops."""
        whole = self.added_to(report)
        self._run.moved, self._run.matched = whole.moved, whole.matched
        if report.status == "running" and self._run.stop.is_set():
            raise _Interrupted

    def added_to(self, report: RedriveReport) -> RedriveReport:
        """Return the report with what was moved before."""
        return msgspec.structs.replace(
            report,
            moved=report.moved + self.total,
            matched=report.matched + self.total,
            destinations=dict(self._before + Counter(dict(report.destinations))),
        )


def _chosen(wanted: Redrive) -> dict[str, Any]:
    """Return which dead letters to move, where to, how many and how fast."""
    given = wanted.match
    match = Match(fingerprint=given.fingerprint, key=given.key, event_type=given.event_type, ids=tuple(given.ids))
    return {"to": wanted.to, "match": match, "limit": wanted.limit, "rate": wanted.rate, "canary": wanted.canary}


def _as_document(report: RedriveReport) -> Mapping[str, Any]:
    return dict(msgspec.to_builtins(report))
