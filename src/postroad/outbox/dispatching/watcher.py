"""Waking a dispatcher of a SQLite file: a look at its version many times a second, which costs next to nothing."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from postroad.outbox.dispatching.store import Wake

if TYPE_CHECKING:
    from postroad.connections import ApplicationFile

_LOOK_SECONDS: Final = 0.02
_VERSION: Final = "PRAGMA data_version"


class Watcher:
    """A thread that calls `wake` when anybody has written to the file."""

    def __init__(self, file: ApplicationFile, wake: Wake) -> None:
        self._address = f"file:{quote(str(file.path.absolute()))}?mode=ro"
        self._wake = wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="postroad-outbox-watch", daemon=True)

    def start(self) -> bool:
        self._thread.start()
        return True

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                with closing(sqlite3.connect(self._address, uri=True, isolation_level=None)) as connection:
                    self._compare(connection)
            except sqlite3.Error:
                # Polling goes on meanwhile.
                self._stop.wait(_LOOK_SECONDS * 10)

    def _compare(self, connection: sqlite3.Connection) -> None:
        seen = None
        while not self._stop.wait(_LOOK_SECONDS):
            (version,) = connection.execute(_VERSION).fetchone()
            if version != seen:
                seen = version
                self._wake()
