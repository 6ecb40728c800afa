"""Copying the log into the file before it grows long, by whoever has just committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import apsw

from postroad import failpoints
from postroad.connections.reserve import Reserve

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
