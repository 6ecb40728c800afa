"""Copying the log into the file before it grows long, by whoever has just committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import apsw

from postroad import failpoints

CHECKPOINT_PAGES: Final = 4_000


class Checkpoints:
    """Knows how long the log of one writer is, and when to try the next copy."""

    def __init__(self, expect_in_place: Callable[[], None]) -> None:
        self._expect_in_place = expect_in_place
        """Raises when the log is not the one at the path: to copy it would damage the file of others."""
        self._pages = 0
        self._due_at = CHECKPOINT_PAGES

    def follow(self, writer: apsw.Connection) -> None:
        """Hear from the writer how long its log is after each commit."""
        self._writer, self._pages = writer, 0
        writer.set_wal_hook(self._count)

    def hasten(self) -> None:
        """Copy after the next commit: a log that is copied starts again from its beginning, and needs no more room."""
        self._due_at = 0

    def run_if_due(self) -> None:
        """Copy the log when it is long, so that it starts again from its beginning."""
        if self._pages >= self._due_at:
            self._run()

    def cut(self) -> None:
        """Give the room of a log that nobody needs back to the disk, if it can be done."""
        self._expect_in_place()
        with suppress(apsw.Error):
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

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
