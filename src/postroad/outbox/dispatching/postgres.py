"""A dispatcher's rows on PostgreSQL. Statements run by themselves: one is one transaction, and none needs a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from postroad.connections import Row
from postroad.errors import ConfigurationError, Unavailable
from postroad.outbox.dialects import Phrases
from postroad.outbox.dispatching import postgres_statements as sql
from postroad.outbox.dispatching.config import Policy
from postroad.outbox.dispatching.messages import (
    FIRST_KEY,
    ClaimedRow,
    Gauges,
    Key,
    Lease,
    Settled,
    Settlement,
    given_back,
)
from postroad.outbox.dispatching.plan import contiguous
from postroad.outbox.dispatching.store import with_phrases
from postroad.outbox.migrations import require
from postroad.outbox.rows import FAILED, SENT

if TYPE_CHECKING:
    from postroad.connections import PostgresDatabase


class PostgresDispatchStore:
    """Claims and settles over one connection in autocommit mode."""

    def __init__(self, database: PostgresDatabase, words: Phrases, *, owner: str, lease: float, policy: Policy) -> None:
        self._database = database
        self._words = words
        self._owner = owner
        self._lease = lease
        self._policy = policy
        self._connection: psycopg.Connection[Row] | None = None
        self._filled: dict[str, bytes] = {}

    def open(self) -> None:
        self.close()
        require(self._database, self._words)
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
        kept, cut_off = contiguous(_placed(*row) for row in found)
        if cut_off:
            self.settle([given_back(row) for row in cut_off])
        return kept

    def renew(self, rows: Sequence[ClaimedRow]) -> set[Lease]:
        mine = self._rows(sql.RENEW, **_ids_and_tokens(rows), owner=self._owner, lease=self._lease)
        return {(row_id, token) for row_id, token in mine}

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        # In the order of keys and rows, so that dispatchers that meet here lock in the same order.
        ordered = sorted(settlements, key=lambda each: (each.row.key, each.row.seq))
        if any(self._has_consequences(each) for each in ordered):
            with self._transaction():
                ages = self._settle(ordered)
                self._follow_up([each for each in ordered if each.row.lease in ages])
        else:
            ages = self._settle(ordered)
        return [Settled(each, ages[each.row.lease]) for each in ordered if each.row.lease in ages]

    def tell_target(self, error: str | None, *, pause: float = 0.0) -> None:
        self._change(sql.TELL_TARGET, error=error, pause=pause)

    def gauges(self) -> Gauges:
        with self._database.reading() as session:
            return Gauges(*session.rows(self._words(sql.GAUGES))[0])

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
        """The ages of the rows that were ours to settle, by their leases: of one row there may be two."""
        mine = _ids_and_tokens([each.row for each in settlements])
        errors = [each.error for each in settlements]
        ages = _by_lease(
            self._rows(
                sql.SETTLE,
                **mine,
                owner=self._owner,
                states=_array(each.state for each in settlements),
                counts=_array("t" if each.counts else "f" for each in settlements),
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

    def _has_consequences(self, settlement: Settlement) -> bool:
        if settlement.state == SENT:
            return bool(settlement.row.gap)
        return settlement.state == FAILED and self._policy != "block"

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
            return connection.execute(self._fill(statement), values).fetchall()

    def _change(self, statement: str, **values: Any) -> int:
        with self._translated() as connection:
            return connection.execute(self._fill(statement), values).rowcount

    @contextmanager
    def _translated(self) -> Iterator[psycopg.Connection[Row]]:
        if self._connection is None:
            raise Unavailable("PostgreSQL: the connection is closed")
        try:
            yield self._connection
        except psycopg.Error as error:
            raise self._database.translate(error) from error

    def _fill(self, statement: str) -> bytes:
        if statement not in self._filled:
            self._filled[statement] = self._words(with_phrases(statement, sql.WORDS)).encode()
        return self._filled[statement]


def _placed(
    tenant: str,
    lane: str,
    seq: int,
    place: int,
    row_id: str,
    payload: str,
    attempts: int,
    redrives: int,
    token: int,
    gap: Sequence[str] | None,
    waited: bool,
    *_: object,
) -> tuple[int, ClaimedRow]:
    key, gaps = Key(tenant, lane), tuple(gap or ())
    return place, ClaimedRow(row_id, key, seq, payload, attempts, redrives, token, gaps, waited)


def _by_lease(rows: Iterable[Row]) -> dict[Lease, float]:
    return {(row_id, token): age for row_id, token, age in rows}


def _ids_and_tokens(rows: Sequence[ClaimedRow]) -> dict[str, str]:
    return {"ids": _array(row.id for row in rows), "tokens": _array(str(row.token) for row in rows)}


def _array(words: Iterable[str]) -> str:
    """An array as PostgreSQL reads it, of words that need no quotes; the driver's own way takes far longer."""
    return "{" + ",".join(words) + "}"
