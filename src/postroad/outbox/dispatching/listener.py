"""Waking a dispatcher by LISTEN, on a connection of its own; behind a pooler that has none, polling has to do."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg

from postroad.connections import Row
from postroad.errors import PostroadError
from postroad.outbox.dispatching.store import Wake
from postroad.outbox.schema.names import CHANNEL, Names

if TYPE_CHECKING:
    from postroad.connections import PostgresDatabase

_LISTEN: Final = f"LISTEN {CHANNEL}".encode()
# Until then commits need not notify: we look again after it. Even, so that it is known for a dispatcher's word.
_QUIET: Final = """
SELECT setval('{wake}', ((extract(epoch FROM clock_timestamp()) * 1000)::bigint + %s) / 2 * 2)
 WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL
"""
_QUIET_MILLISECONDS: Final = 10
_SAY_EVERY_SECONDS: Final = 20.0
_NOTIFY: Final = "SELECT pg_notify(?, ?)"
_TEST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0)


class Listener:
    """A thread that calls `wake` when a row was added, and connects anew when the server was away."""

    def __init__(self, database: PostgresDatabase, names: Names, wake: Wake) -> None:
        self._database = database
        self._table = names.table
        self._quiet = names.fill(_QUIET).encode()
        self._say_at = 0.0
        self._wake = wake
        self._stop = threading.Event()
        self._connection: psycopg.Connection[Row] | None = None
        self._thread = threading.Thread(target=self._listen, name="postroad-outbox-listen", daemon=True)

    def start(self) -> bool:
        """Begin; False when a notification to oneself does not arrive: then nothing listens."""
        self._connection = self._connected()
        if not self._hears_itself():
            self._close()
            return False
        self._ask_for_quiet(0)
        self._thread.start()
        return True

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def _connected(self) -> psycopg.Connection[Row]:
        connection = self._database.connect()
        connection.execute(_LISTEN)
        return connection

    def _hears_itself(self) -> bool:
        """Notify over another connection: behind a pooler that shares its connections, this one hears nothing."""
        word = uuid.uuid4().hex
        assert self._connection is not None
        with self._database.transaction() as session:
            session.rows(_NOTIFY, (CHANNEL, word))
        heard = (notice.payload for notice in self._connection.notifies(timeout=_TEST_SECONDS))
        return word in heard

    def _listen(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                if self._connection is None:
                    self._connection = self._connected()
                    self._ask_for_quiet(0)
                    self._wake()
                self._hear()
                failures = 0
            except (psycopg.Error, PostroadError):
                self._close()
                self._stop.wait(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1

    def _hear(self) -> None:
        assert self._connection is not None
        heard = {notice.payload for notice in self._connection.notifies(timeout=_LOOK_SECONDS, stop_after=1)}
        # One channel is shared by all outboxes of the database.
        if self._table in heard:
            self._ask_for_quiet(_QUIET_MILLISECONDS)
            self._wake()
        elif time.monotonic() >= self._say_at:
            self._ask_for_quiet(0)

    def _ask_for_quiet(self, milliseconds: int) -> None:
        """Tell commits that somebody listens, and for how long they need not notify."""
        assert self._connection is not None
        self._connection.execute(self._quiet, (milliseconds,))
        self._say_at = time.monotonic() + _SAY_EVERY_SECONDS

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None
