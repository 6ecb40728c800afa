"""Operations that take longer than a request: they are recorded, run on a thread, and continue after a restart."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from postroad.clock import Clock
from postroad.errors import NotFound, PostroadError
from postroad.items import ABSENT, Expect, Item, Items
from postroad.tasks import scan
from postroad.telemetry import REQUEST_ID, get_logger, legible, redact
from postroad.views import OperationShown, OperationState

KEEP: Final = timedelta(days=7)
_PAGE: Final = 100
_WRITE_SECONDS: Final = 1.0
# An operation that nobody has written for so long has lost its server.
_LOST_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 5.0
_MOST_ERROR: Final = 500
INTERRUPTED: Final = "stopped"
"""The status of a report that was cut short because the server stops."""
_STOPPED: Final = {
    INTERRUPTED: "",
    "canary_failed": "the canary was not handled, or came back",
    "returned": "too many of the moved messages came back",
}
"""Why an operation stopped before its end, by the status of its report."""
_log = get_logger("http")


class OperationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as it is stored."""

    kind: str
    params: dict[str, Any]
    actor: str
    owner: str
    """The server that wrote it last."""
    at: datetime
    state: OperationState = "running"
    moved: int = 0
    matched: int = 0
    error: str | None = None
    report: dict[str, Any] | None = None
    request_id: str | None = None
    """The request that asked for it, for the audit."""


@dataclass(slots=True, kw_only=True)
class OperationRun:
    """A running operation, for the function that does its work: it reads what to do and counts what it did."""

    id: str
    params: Mapping[str, Any]
    actor: str
    stop: threading.Event
    moved: int = 0
    matched: int = 0
    read_progress: Callable[[], bytes | None] = lambda: None
    """Returns what the work stored last, by this or an earlier server."""
    write_progress: Callable[[bytes], object] = lambda _: None
    """Stores how far the work is; inside a transaction, if and only if it commits."""
    moved_before: int = field(init=False)
    """What an earlier server had done when it ended."""
    matched_before: int = field(init=False)

    def __post_init__(self) -> None:
        self.moved_before, self.matched_before = self.moved, self.matched

    def count(self, moved: int, matched: int) -> None:
        """Note what was done since this server began."""
        self.moved, self.matched = self.moved_before + moved, self.matched_before + matched


Work = Callable[[OperationRun], Mapping[str, Any]]
"""Does the work of one kind of operation and returns its report."""


class Operations:
    """The operations of one server's store.

    Args:
        items: Where they are recorded.
        tenant: The tenant of the server.
        clock: The time.
        kinds: What does the work, by the name of the kind.
        alone: Whether no other server uses the store, so that what is found running has lost its server.
    """

    def __init__(self, items: Items, *, tenant: str, clock: Clock, kinds: Mapping[str, Work], alone: bool) -> None:
        self._items = items
        self._prefix = f"{tenant}/OPERATION#"
        self._progress = f"{tenant}/OPERATION-PROGRESS#"
        self._clock = clock
        self._kinds = kinds
        self._alone = alone
        self._me = uuid.uuid4().hex
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}

    def record(self, kind: str, params: Mapping[str, Any], *, actor: str) -> str:
        """Record an operation and return its id; `run` begins it, now or, after a crash, at the next start."""
        operation_id = uuid.uuid4().hex
        record = OperationRecord(
            kind=kind,
            params=dict(params),
            actor=actor,
            owner=self._me,
            at=self._clock.now(),
            request_id=REQUEST_ID.get(),
        )
        self._put(operation_id, record, ABSENT)
        return operation_id

    def show(self, operation_id: str) -> OperationShown:
        """Return how far an operation is, or raise `NotFound`."""
        item = self._items.get(self._prefix + operation_id) if operation_id.isalnum() else None
        if item is None:
            raise NotFound(f'there is no operation "{operation_id[:100]}"')
        found = _read(item)
        return OperationShown(found.state, found.moved, found.matched, found.error, found.report)

    def run(self, operation_id: str) -> None:
        """Run a recorded operation on a thread, unless it runs or has ended."""
        with self._lock:
            if operation_id in self._threads or self._stop.is_set():
                return
            thread = threading.Thread(target=self._keep, args=(operation_id,), name="operation", daemon=True)
            self._threads[operation_id] = thread
        thread.start()

    def resume(self) -> None:
        """Continue what a server that ended has left, and forget what ended a week ago. It may wait for a while."""
        if not self._alone:
            self._stop.wait(_LOST_SECONDS)
        try:
            for item in scan(self._items, self._prefix, limit=_PAGE):
                self._resume(item)
        except PostroadError as error:
            _log.error("operation_failed", operation_id=None, error=str(error))

    def _resume(self, item: Item) -> None:
        found = _read(item)
        age = self._clock.now() - found.at
        if found.state == "running" and (self._alone or age > timedelta(seconds=_LOST_SECONDS)):
            self.run(item.key.removeprefix(self._prefix))
        elif found.state != "running" and age > KEEP:
            self._items.delete(self._progress + item.key.removeprefix(self._prefix))
            self._items.delete(item.key, expect=item.version)

    def stop(self) -> None:
        """Stop what runs; the next server continues it."""
        self._stop.set()
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(_STOP_SECONDS)

    def _keep(self, operation_id: str) -> None:
        """Run an operation, and write once a second how far it is."""
        try:
            item = self._items.get(self._prefix + operation_id)
            if item is not None and (before := _read(item)).state == "running":
                self._work(operation_id, before, item.version)
        except PostroadError as error:
            # It is recorded as running, and the next server continues it.
            _log.error("operation_failed", operation_id=operation_id, error=str(error))
        finally:
            with self._lock:
                self._threads.pop(operation_id, None)

    def _work(self, operation_id: str, before: OperationRecord, version: int) -> None:
        run = OperationRun(
            id=operation_id,
            params=before.params,
            actor=before.actor,
            stop=threading.Event(),
            moved=before.moved,
            matched=before.matched,
            read_progress=lambda: self._read_progress(operation_id),
            write_progress=lambda value: self._items.put(self._progress + operation_id, value),
        )
        ended: dict[str, Any] = {}
        worker = threading.Thread(target=self._do, args=(before, run, ended), name="operation-work", daemon=True)
        mine: int | None = self._put(operation_id, self._signed(before, run), version)
        if mine is None:
            return
        worker.start()
        while worker.is_alive():
            worker.join(_WRITE_SECONDS)
            if self._stop.is_set():
                run.stop.set()
            if worker.is_alive():
                # A store that is away for a while is written again the next time.
                with suppress(PostroadError):
                    mine = self._put(operation_id, self._signed(before, run), mine)
                if mine is None:
                    run.stop.set()
                    worker.join()
                    return
        if self._stop.is_set() and ended.get("report", {}).get("status") == INTERRUPTED:
            ended = {}
        self._write_end(operation_id, self._signed(before, run, **ended), mine)

    def _write_end(self, operation_id: str, record: OperationRecord, version: int) -> None:
        """Write how an operation ended, again and again while the store is away."""
        while True:
            try:
                self._put(operation_id, record, version)
            except PostroadError as error:
                _log.error("operation_failed", operation_id=operation_id, error=str(error))
                if self._stop.wait(_WRITE_SECONDS):
                    return
            else:
                return

    def _do(self, record: OperationRecord, run: OperationRun, ended: dict[str, Any]) -> None:
        REQUEST_ID.set(record.request_id)
        try:
            report = dict(self._kinds[record.kind](run))
            why = _STOPPED.get(report.get("status", ""))
            ended |= {"state": "done" if why is None else "stopped", "error": why or None, "report": report}
        except Exception as error:
            text = legible(redact(str(error) if isinstance(error, PostroadError) else type(error).__name__))
            ended |= {"state": "failed", "error": text[:_MOST_ERROR]}
            _log.error("operation_failed", operation_id=run.id, error=text)

    def _signed(self, before: OperationRecord, run: OperationRun, **changed: Any) -> OperationRecord:
        """Return the record as this server writes it now."""
        return msgspec.structs.replace(
            before, moved=run.moved, matched=run.matched, owner=self._me, at=self._clock.now(), **changed
        )

    def _put(self, operation_id: str, record: OperationRecord, expect: int | Expect) -> int | None:
        """Write the record and return its version; None if another server has taken the operation over."""
        key, value = self._prefix + operation_id, msgspec.json.encode(record)
        written = self._items.put(key, value, expect=expect)
        if not written.ok and written.item is not None and _read(written.item).owner == self._me:
            # An earlier write of ours succeeded, and its answer was lost.
            written = self._items.put(key, value, expect=written.item.version)
        return written.item.version if written.ok and written.item is not None else None

    def _read_progress(self, operation_id: str) -> bytes | None:
        item = self._items.get(self._progress + operation_id)
        return None if item is None else item.value


def _read(item: Item) -> OperationRecord:
    return msgspec.json.decode(item.value, type=OperationRecord)
