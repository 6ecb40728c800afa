"""Compaction: give the room of free pages back to the disk, in short steps beside other writers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw
import msgspec

from postroad.engine.transaction import Transaction
from postroad.errors import NotSupported, StorageFull

if TYPE_CHECKING:
    from postroad.engine.engine import Engine

STEP_PAGES: Final = 256
LEAST_STEP_PAGES: Final = 8
REBUILT_AT_ONCE: Final = 134_217_728
"""The most bytes of data that are rebuilt without a request: every writer waits meanwhile, a second or two."""
_INCREMENTAL: Final = 2

Progress = Callable[["Compaction"], None]


class Compaction(msgspec.Struct, frozen=True):
    """The outcome of a compaction.

    Attributes:
        before_bytes: The size of the file and its log before.
        after_bytes: The size of the file and its log after.
        steps: The number of transactions that it took.
        rebuilt: Whether the whole file was rewritten, which a file of an earlier version needs once.
    """

    before_bytes: int
    after_bytes: int
    steps: int
    rebuilt: bool

    @property
    def given_back_bytes(self) -> int:
        """How many bytes the disk got back."""
        return max(0, self.before_bytes - self.after_bytes)


def compact(engine: Engine, *, rebuild: bool = False, progress: Progress | None = None) -> Compaction:
    """Move what lies at the end of the file into its free pages and cut it off, then cut off the log.

    Each step is a transaction of its own of a few milliseconds: whatever ends the program in between, nothing is lost,
    and the next run goes on.
    """
    before, steps = _size(engine.path), 0
    rebuilt = engine.read(lambda connection: connection.pragma("auto_vacuum")) != _INCREMENTAL
    if rebuilt:
        data = engine.read(_used_bytes)
        if data > REBUILT_AT_ONCE and not rebuild:
            raise NotSupported(
                f"{engine.path}: was made by an earlier version; its {data / 1e6:,.0f} MB must be written anew once",
                remedy="Run `postroad compact --rebuild` when every program that writes to the file can wait or stop.",
            )
        engine.alone(_rebuild)

    def report() -> Compaction:
        return Compaction(before_bytes=before, after_bytes=_size(engine.path), steps=steps, rebuilt=rebuilt)

    # Pages that others free meanwhile are left for the next run.
    left, size = engine.read(lambda connection: int(connection.pragma("freelist_count"))), STEP_PAGES
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
    both = (path, path.with_name(f"{path.name}-wal"))
    return sum(each.stat().st_size for each in both if each.exists())


def _rebuild(writer: apsw.Connection) -> None:
    """Rewrite the file without its free pages, so that it can be cut in steps from then on; all writers wait."""
    writer.pragma("auto_vacuum", _INCREMENTAL)
    # A copy of all the data may not fit into memory.
    writer.pragma("temp_store", "file")
    writer.execute("VACUUM")
    writer.pragma("temp_store", "memory")


def _used_bytes(connection: apsw.Connection) -> int:
    pages = int(connection.pragma("page_count")) - int(connection.pragma("freelist_count"))
    return pages * int(connection.pragma("page_size"))


def _step(tx: Transaction, pages: int) -> int:
    """Take up to `pages` free pages out of the file; return how many were taken."""
    before = int(tx.connection.pragma("page_count"))
    tx.connection.pragma("incremental_vacuum", pages)
    return before - int(tx.connection.pragma("page_count"))
