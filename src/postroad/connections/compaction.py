"""Giving the disk back what the embedded file no longer needs, in short steps while others use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw
import msgspec

from postroad.connections.transaction import Transaction
from postroad.errors import NotSupported, StorageFull

if TYPE_CHECKING:
    from postroad.connections.engine import Engine

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
