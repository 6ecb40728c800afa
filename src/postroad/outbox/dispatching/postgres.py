"""A dispatcher's rows on PostgreSQL, and its wake-up by LISTEN.

Every statement is a transaction of its own, and none depends on the session.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import psycopg

from postroad.connections import Row
from postroad.errors import ConfigurationError, Unavailable
from postroad.outbox.dispatching import postgres_statements as sql
from postroad.outbox.dispatching.config import Policy
from postroad.outbox.dispatching.decisions import released
from postroad.outbox.dispatching.store import FIRST_KEY, ClaimedRow, Gauges, Key, Lease, Settled, Settlement
from postroad.outbox.rows import FAILED, SENT
from postroad.outbox.schema import CHANNEL, Tables, require

if TYPE_CHECKING:
    from postroad.connections import PostgresDatabase


class PostgresDispatchStore:
    """Claims and settles over one connection in autocommit mode."""

    def __init__(self, database: PostgresDatabase, tables: Tables, *, owner: str, lease: float, policy: Policy) -> None:
        self._database = database
        self._tables = tables.with_phrases(sql.PHRASES)
        self._owner = owner
        self._lease = lease
        self._policy = policy
        self._connection: psycopg.Connection[Row] | None = None

    def open(self) -> None:
        self.close()
        require(self._database, self._tables)
        self._connection = self._database.connect()
        self._check_server()
        with self._transaction():
            if self._change(sql.SET_POLICY, policy=self._policy):
                self._change(sql.RELEASE_ALL)
        self._rows(sql.SKIP_TOKENS)

    def claim(self, limit: int, *, after: Key, leaving: int = 0) -> list[ClaimedRow]:
        found = self._rows(
            sql.CLAIM,
            limit=limit,
            leaving=leaving,
            tenant=after.tenant,
            lane=after.lane,
            deep=after == FIRST_KEY,
            skip=self._policy == "skip",
            owner=self._owner,
            lease=self._lease,
        )
        *_, stuck, held_by = found[-1] if found else (None, None)
        if stuck:
            self._change(sql.HOLD, ids=stuck, held_by=held_by)
            found.pop()
        kept, cut_off = _contiguous(found)
        if cut_off:
            self.settle([released(row) for row in cut_off])
        return kept

    def renew(self, rows: Sequence[ClaimedRow]) -> set[Lease]:
        mine = self._rows(sql.RENEW, **_ids_and_tokens(rows), owner=self._owner, lease=self._lease)
        return {(row_id, token) for row_id, token in mine}

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        # In the order of keys and rows, so that concurrent dispatchers lock in the same order.
        ordered = sorted(settlements, key=lambda each: (each.row.key, each.row.seq))
        if any(
            each.row.gap if each.state == SENT else each.state == FAILED and self._policy != "block" for each in ordered
        ):
            with self._transaction():
                ages = self._settle(ordered)
                self._follow_up([each for each in ordered if each.row.lease in ages])
        else:
            ages = self._settle(ordered)
        return [Settled(each, ages[each.row.lease]) for each in ordered if each.row.lease in ages]

    def restart_pauses(self) -> None:
        self._change(sql.RESTART_PAUSES)

    def set_target_error(self, error: str | None, *, pause: float = 0.0) -> None:
        self._change(sql.SET_TARGET_ERROR, error=error, pause=pause)

    def gauges(self) -> Gauges:
        with self._database.reading() as session:
            return Gauges(*session.rows(self._tables(sql.GAUGES))[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _check_server(self) -> None:
        ((read_only, isolation),) = self._rows(sql.SERVER)
        if read_only:
            raise ConfigurationError(
                "dsn: the server is read-only", field="dsn", remedy="Name the primary server, not a replica."
            )
        if isolation != "read committed":
            raise ConfigurationError(
                f"dsn: its transactions are {isolation!r} by default; a dispatcher needs 'read committed'",
                field="dsn",
                remedy="ALTER ROLE the_dispatchers_role SET default_transaction_isolation = 'read committed'",
            )

    def _settle(self, settlements: Sequence[Settlement]) -> dict[Lease, float]:
        """Settle the rows that this dispatcher still holds; return their ages by lease, as one row may have two."""
        mine = _ids_and_tokens([each.row for each in settlements])
        errors = [each.error for each in settlements]
        ages = _by_lease(
            self._rows(
                sql.SETTLE,
                **mine,
                owner=self._owner,
                states=_array(each.state for each in settlements),
                counts=_array("f" if each.kind == "held" else "t" for each in settlements),
                delays=_array("NULL" if each.delay is None else repr(each.delay) for each in settlements),
                errors=errors if any(errors) else [],
            )
        )
        if len(ages) < len(settlements):
            missing = [each for each in settlements if each.row.lease not in ages]
            mine = _ids_and_tokens([each.row for each in missing])
            states = _array(each.state for each in missing)
            ages |= _by_lease(self._rows(sql.SETTLED_BEFORE, **mine, states=states))
        return ages

    def _follow_up(self, settlements: Sequence[Settlement]) -> None:
        failed = [each.row.id for each in settlements if each.state == FAILED]
        if announced := [each.row.id for each in settlements if each.state == SENT and each.row.gap]:
            self._change(sql.CLOSE_GAPS, ids=_array(announced))
        if failed and self._policy == "skip":
            self._change(sql.NOTE_GAPS, ids=_array(failed))
        if failed and self._policy == "park":
            self._change(sql.PARK, ids=_array(failed))
            self._change(sql.SET_ASIDE, ids=_array(failed))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated() as connection, connection.transaction():
            yield

    def _rows(self, statement: str, **values: Any) -> list[Row]:
        with self._translated() as connection:
            return connection.execute(self._tables(statement).encode(), values).fetchall()

    def _change(self, statement: str, **values: Any) -> int:
        with self._translated() as connection:
            return connection.execute(self._tables(statement).encode(), values).rowcount

    @contextmanager
    def _translated(self) -> Iterator[psycopg.Connection[Row]]:
        if self._connection is None:
            raise Unavailable("PostgreSQL: the connection is closed")
        try:
            yield self._connection
        except psycopg.Error as error:
            raise self._database.translate(error) from error


def _contiguous(found: Iterable[Row]) -> tuple[list[ClaimedRow], list[ClaimedRow]]:
    """Return the claimed rows, sorted by key and place in the key, and apart those behind a place that is missing."""
    placed: list[tuple[Key, int, ClaimedRow]] = []
    for tenant, lane, seq, place, row_id, payload, attempts, redrives, token, gap, waited, *_ in found:
        key = Key(tenant, lane)
        row = ClaimedRow(row_id, key, seq, payload, attempts, redrives, token, tuple(gap or ()), waited)
        placed.append((key, place, row))
    kept: list[ClaimedRow] = []
    cut_off: list[ClaimedRow] = []
    for _, group in groupby(sorted(placed, key=lambda each: each[:2]), key=lambda each: each[0]):
        for expected, (_, place, row) in enumerate(group, 1):
            (kept if place == expected else cut_off).append(row)
    return kept, cut_off


def _by_lease(rows: Iterable[Row]) -> dict[Lease, float]:
    return {(row_id, token): age for row_id, token, age in rows}


def _ids_and_tokens(rows: Sequence[ClaimedRow]) -> dict[str, str]:
    return {"ids": _array(row.id for row in rows), "tokens": _array(str(row.token) for row in rows)}


def _array(texts: Iterable[str]) -> str:
    """Return an array of texts that need no quotes, as PostgreSQL reads it; the driver needs far longer for this."""
    return "{" + ",".join(texts) + "}"


_LISTEN: Final = f"LISTEN {CHANNEL}".encode()
# Until this time commits need not notify: the dispatcher looks again after it. Triggers write odd numbers, this even.
_QUIET: Final = """
SELECT setval('{wake}', ((extract(epoch FROM clock_timestamp()) * 1000)::bigint + %s) / 2 * 2)
 WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL
"""
_QUIET_MILLISECONDS: Final = 10
_QUIET_EVERY_SECONDS: Final = 20.0
_NOTIFY: Final = "SELECT pg_notify(?, ?)"
_TEST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0)


class Listener:
    """A thread that calls `wake` when rows were added, and reconnects after an outage of the server."""

    def __init__(self, database: PostgresDatabase, tables: Tables, wake: Callable[[], None]) -> None:
        self._database = database
        self._table = tables.table
        self._quiet = tables(_QUIET).encode()
        self._quiet_again_at = 0.0
        self._wake = wake
        self._stop = threading.Event()
        self._connection: psycopg.Connection[Row] | None = None
        self._thread = threading.Thread(target=self._listen, name="postroad-outbox-listen", daemon=True)

    def start(self) -> bool:
        """Start the thread; return False, and start nothing, if a notification to itself does not arrive."""
        try:
            if not self._hears_itself():
                self._close()
                return False
            self._ask_for_quiet(0)
        except psycopg.Error as error:
            raise self._database.translate(error) from error
        self._thread.start()
        return True

    def _hears_itself(self) -> bool:
        self._connection = self._connected()
        # Notify over another connection: behind a pooler that shares its connections, this one receives nothing.
        test = uuid.uuid4().hex
        with self._database.transaction() as session:
            session.rows(_NOTIFY, (CHANNEL, test))
        return test in (notice.payload for notice in self._connection.notifies(timeout=_TEST_SECONDS))

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    def _connected(self) -> psycopg.Connection[Row]:
        connection = self._database.connect()
        connection.execute(_LISTEN)
        return connection

    def _listen(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                if self._connection is None:
                    self._connection = self._connected()
                    self._ask_for_quiet(0)
                    self._wake()
                self._receive()
                failures = 0
            except Exception:
                # Whatever it was, a new connection may be better; the dispatcher polls meanwhile.
                self._close()
                self._stop.wait(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1

    def _receive(self) -> None:
        assert self._connection is not None
        tables = {notice.payload for notice in self._connection.notifies(timeout=_LOOK_SECONDS, stop_after=1)}
        # All outboxes of a database share one channel.
        if self._table in tables:
            self._ask_for_quiet(_QUIET_MILLISECONDS)
            self._wake()
        elif time.monotonic() >= self._quiet_again_at:
            self._ask_for_quiet(0)

    def _ask_for_quiet(self, milliseconds: int) -> None:
        """Write that a dispatcher listens, and for how long commits need not notify it."""
        assert self._connection is not None
        self._connection.execute(self._quiet, (milliseconds,))
        self._quiet_again_at = time.monotonic() + _QUIET_EVERY_SECONDS

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None
