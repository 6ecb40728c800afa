"""Keeping the file small: the log is copied into it before it grows long, and room that is not needed is given back."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw
import msgspec

from postroad import failpoints
from postroad.engine.disk import Reserve
from postroad.engine.transaction import Transaction
from postroad.errors import NotSupported, StorageFull

if TYPE_CHECKING:
    from postroad.engine.engine import Engine


CHECKPOINT_PAGES: Final = 4_000
SHORT_PAGES: Final = 32
"""Half of a quarter of the smallest head-room: neither a log nor a growth of so many pages uses it up."""


class Checkpoints:
    """Knows how long the log of one writer is, and when to try the next copy."""

    def __init__(self, reserve: Reserve, expect_in_place: Callable[[], None]) -> None:
        self._reserve = reserve
        self._expect_in_place = expect_in_place
        """Raises when the log is not the one at the path: to copy it would damage the file of others."""
        self._pages = 0
        self._due_at = CHECKPOINT_PAGES
        self._looked_at = -SHORT_PAGES
        self._is_short_of_room = False

    def follow(self, writer: apsw.Connection) -> None:
        """Hear from the writer how long its log is after each commit."""
        self._writer, self._pages = writer, 0
        writer.set_wal_hook(self._count)

    def is_look_due(self) -> bool:
        """Whether the file may have grown noticeably since this was last asked."""
        if not self._is_short_of_room and abs(self._pages - self._looked_at) < SHORT_PAGES:
            return False
        self._looked_at = self._pages
        return True

    def run_if_due(self) -> None:
        """Copy the log when it is long, so that it starts again from its beginning; on a full disk early."""
        if not self._is_short_of_room:
            if self._pages >= self._due_at:
                self._run()
        elif self._reserve.is_whole:
            self._is_short_of_room = False
        elif self._pages >= SHORT_PAGES:
            self._copy_to_full_disk()

    def make_room(self, *, adds: bool) -> None:
        """Use the reserve to copy the log, so that the next commit overwrites it instead of making it longer.

        For somebody who adds, the disk also gets back the room of the log, which may be all that is missing.
        """
        if adds:
            self._reserve.shrink(adds=True)
            self.cut()
        else:
            self._is_short_of_room = True
            self._copy_to_full_disk()

    def cut(self) -> None:
        """Copy the log and give its room back to the disk, if it can be done."""
        self._expect_in_place()
        with suppress(apsw.Error):
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _copy_to_full_disk(self) -> None:
        self._reserve.shrink(adds=False)
        with suppress(apsw.Error):
            try:
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.FullError:
                self._reserve.give_all()
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._pages = 0

    def _count(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def _run(self) -> None:
        self._expect_in_place()
        try:
            pages, copied = self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            # Somebody else is at it, or the disk is full: the log holds everything; the next commit tries again.
            pages, copied = self._pages, 0
        failpoints.hit("engine.checkpoint.mid")
        self._pages = 0
        # A long reader keeps the log from starting again: trying at every commit would only cost.
        self._due_at = CHECKPOINT_PAGES if copied >= pages else pages + CHECKPOINT_PAGES // 4


STEP_PAGES: Final = 256
LEAST_STEP_PAGES: Final = 8
REBUILT_AT_ONCE: Final = 134_217_728
"""How many bytes of data are rebuilt without being asked: all that write wait for it, a second or two."""
_INCREMENTAL: Final = 2

Progress = Callable[["Compaction"], None]


class Compaction(msgspec.Struct, frozen=True):
    """What a compaction has done."""

    before_bytes: int
    """The size of the file and its log."""
    after_bytes: int
    steps: int
    rebuilt: bool
    """Whether the file was written anew, which one of an earlier version needs once."""

    @property
    def given_back_bytes(self) -> int:
        """How much room the disk has got back."""
        return max(0, self.before_bytes - self.after_bytes)


def compact(engine: Engine, *, rebuild: bool = False, progress: Progress | None = None) -> Compaction:
    """Move what lies at the end of the file into its free pages and cut it off, then cut off the log.

    Each step is a transaction of its own of a few milliseconds: whatever ends the program in between, nothing is lost,
    and the next run goes on.
    """
    before, steps = _size(engine.path), 0
    rebuilt = engine.read(lambda connection: connection.pragma("auto_vacuum")) != _INCREMENTAL
    if rebuilt:
        _check_rebuild(engine, rebuild=rebuild)
        engine.alone(_rebuild)

    def report() -> Compaction:
        return Compaction(before_bytes=before, after_bytes=_size(engine.path), steps=steps, rebuilt=rebuilt)

    # What others free meanwhile is for the next run.
    left, size = _free_pages(engine), STEP_PAGES
    while left > 0:
        began = time.monotonic()
        try:
            moved = engine.write(partial(_step, pages=size), durable=False, removes=True)
        except StorageFull:
            if size == LEAST_STEP_PAGES:
                raise
            # A full disk has room for a short log only.
            size = max(LEAST_STEP_PAGES, size // 4)
            continue
        if not moved:
            break
        left, steps = left - moved, steps + 1
        if progress is not None:
            progress(report())
        # Half of the time belongs to others.
        time.sleep(time.monotonic() - began)
    engine.alone(lambda _: None)
    return report()


def _size(path: Path) -> int:
    """Bytes of the file and its log."""
    both = (path, path.with_name(f"{path.name}-wal"))
    return sum(each.stat().st_size for each in both if each.exists())


def _rebuild(writer: apsw.Connection) -> None:
    """Write the file anew without its free pages, so that it can be cut in steps from then on; all writers wait."""
    writer.pragma("auto_vacuum", _INCREMENTAL)
    # A copy of all that is used would not fit into the memory.
    writer.pragma("temp_store", "file")
    writer.execute("VACUUM")
    writer.pragma("temp_store", "memory")


def _check_rebuild(engine: Engine, *, rebuild: bool) -> None:
    data = engine.read(_used_bytes)
    if data > REBUILT_AT_ONCE and not rebuild:
        raise NotSupported(
            f"{engine.path}: an earlier version made this file, and its {data / 1e6:,.0f} MB must be written anew once",
            remedy="Run `postroad compact --rebuild` when all that write to the file may wait for it, or be stopped.",
        )


def _used_bytes(connection: apsw.Connection) -> int:
    pages = int(connection.pragma("page_count")) - int(connection.pragma("freelist_count"))
    return pages * int(connection.pragma("page_size"))


def _free_pages(engine: Engine) -> int:
    return engine.read(lambda connection: int(connection.pragma("freelist_count")))


def _step(tx: Transaction, pages: int) -> int:
    """Take up to so many free pages out of the file; how many it has less."""
    before = int(tx.connection.pragma("page_count"))
    tx.connection.pragma("incremental_vacuum", pages)
    return before - int(tx.connection.pragma("page_count"))
