"""Redrives as operations: a server that continues one moves what is left, and counts what was moved before."""

from __future__ import annotations

import threading
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


class Redrives:
    """Moves dead letters of one store back."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def preview(self, queue: str, wanted: Redrive) -> RedriveReport:
        """Count what would move, and change nothing."""
        self.check(queue, wanted)
        return self._dry_run(queue, wanted)

    def _dry_run(self, queue: str, wanted: Redrive) -> RedriveReport:
        bounds = {"limit": wanted.limit, "rate": wanted.rate, "canary": wanted.canary}
        return redrive(self._backend, queue, to=wanted.to, match=_match(wanted), dry_run=True, **bounds)  # type: ignore[arg-type]

    def check(self, queue: str, wanted: Redrive) -> dict[str, Any]:
        """Return the redrive as an operation stores it; refuse wrong bounds and destinations that cannot be."""
        for name in filter(None, (queue, wanted.to)):
            open_queue(self._backend, name)
        Bounds(limit=wanted.limit, rate=wanted.rate, canary=wanted.canary)
        try:
            Destinations(self._backend, queue, wanted.to).refuse_if_unused()
        except AmbiguousSource:
            # Its messages may say where they came from.
            self._dry_run(queue, wanted)
        return {"queue": queue, "wanted": msgspec.to_builtins(wanted)}

    def work(self, run: OperationRun) -> Mapping[str, Any]:
        """Move what the operation names."""
        wanted = msgspec.convert(run.params["wanted"], Redrive)
        before = _Moved(run, self._backend)
        left = None if wanted.limit is None else max(0, wanted.limit - before.total)
        if left == 0:
            return _as_document(before.added_to(_nothing(run.id)))
        try:
            report = redrive(
                self._backend,
                run.params["queue"],
                to=wanted.to,
                match=_match(wanted),
                limit=left,
                rate=wanted.rate,
                canary=wanted.canary,
                # The store's own redrive could neither be counted nor continued.
                native=False,
                reason=wanted.reason,
                actor=run.actor,
                run_id=run.id,
                progress=before.show,
                each_step=before.step,
                sleep=_waiting(run.stop),
            )
        except _Interrupted:
            return {"status": INTERRUPTED}
        before.show(report)
        return _as_document(before.added_to(report))


class _Interrupted(Exception):
    """The server stops."""


def _waiting(stop: threading.Event) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        if stop.wait(seconds):
            raise _Interrupted

    return wait


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


def _nothing(run_id: str) -> RedriveReport:
    return RedriveReport(run_id=run_id, status="limit", matched=0, moved=0, returned=0, skipped={}, destinations={})


def _match(wanted: Redrive) -> Match:
    given = wanted.match
    return Match(fingerprint=given.fingerprint, key=given.key, event_type=given.event_type, ids=tuple(given.ids))


def _as_document(report: RedriveReport) -> Mapping[str, Any]:
    return dict(msgspec.to_builtins(report))
