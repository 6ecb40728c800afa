"""A dispatcher's rows in a SQLite file of the user's own; its one writer at a time makes every verb one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from postroad.connections.application_file import ApplicationFile, FileSession
from postroad.outbox.dialects import Words
from postroad.outbox.dispatching import sqlite_statements as sql
from postroad.outbox.dispatching.config import Policy
from postroad.outbox.dispatching.rows import FIRST_KEY, ClaimedRow, Gauges, Key, Settled, Settlement
from postroad.outbox.dispatching.wording import spelled_out
from postroad.outbox.migrating import require
from postroad.outbox.rows import FAILED, PENDING, SENT


class SQLiteDispatchStore:
    """Claims and settles in short transactions on the file."""

    def __init__(self, file: ApplicationFile, words: Words, *, owner: str, lease: float, policy: Policy) -> None:
        self._file = file
        self._words = words
        self._owner = owner
        self._lease = lease
        self._policy = policy
        self._filled: dict[str, str] = {}

    def open(self) -> None:
        require(self._file, self._words)
        with self._file.transaction() as session:
            session.change(self._fill(sql.SET_POLICY), (self._policy, self._policy))

    def claim(self, limit: int, *, after: Key, leaving: int = 0) -> list[ClaimedRow]:
        # Most looks find nothing; they take no lock that would hold up those who add.
        with self._file.reading() as session:
            if next(self._due(session, after), None) is None:
                return []
        with self._file.transaction() as session:
            heads = list(islice(self._due(session, after), leaving, leaving + limit))
            token = session.rows(self._fill(sql.NEXT_NUMBER))[0][0]
            depth = max(limit // max(len(heads), 1), 1) if after == FIRST_KEY else 1
            return [row for key, seq in heads for row in self._lease_rows(session, key, seq, depth, token)]

    def renew(self, rows: Sequence[ClaimedRow]) -> set[str]:
        renew = self._fill(sql.RENEW)
        with self._file.transaction() as session:
            return {row.id for row in rows if session.change(renew, (self._lease, row.id, row.token, self._owner)) == 1}

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        ordered = sorted(settlements, key=lambda each: (each.row.key, each.row.seq))
        with self._file.transaction() as session:
            mine = [each for each in ordered if self._settle(session, each)]
            self._follow_up(session, mine)
            age = self._fill(sql.AGE)
            return [Settled(each, session.rows(age, (each.row.id,))[0][0] or 0.0) for each in mine]

    def tell_target(self, error: str | None, *, pause: float = 0.0) -> None:
        with self._file.transaction() as session:
            session.connection.execute(self._fill(sql.TELL_TARGET), {"error": error, "pause": pause})

    def set_aside(self) -> int:
        with self._file.transaction() as session:
            return session.change(self._fill(sql.SET_ASIDE))

    def gauges(self) -> Gauges:
        with self._file.reading() as session:
            return Gauges(*session.rows(self._fill(sql.GAUGES))[0])

    def close(self) -> None:
        """The file's own connections are kept for others."""

    def _due(self, session: FileSession, after: Key) -> Iterator[tuple[Key, int]]:
        """The first rows of keys that may be published now, with their numbers."""
        key: Key | None = after
        while key is not None and (head := self._head_behind(session, key)) is not None:
            tenant, lane, seq, state, free, redrives = head
            key = Key(tenant, lane)
            if self._policy == "skip":
                if redrives and session.rows(self._fill(sql.ANY_LEASED), key):
                    continue
                if state != PENDING:
                    found = session.rows(self._fill(sql.FIRST_PENDING), key)
                    seq, free = (found[0][2], found[0][4]) if found else (seq, 0)
            if free:
                yield key, seq

    def _head_behind(self, session: FileSession, key: Key) -> tuple[Any, ...] | None:
        found = session.rows(self._fill(sql.NEXT_LANE), key) or session.rows(self._fill(sql.NEXT_TENANT), (key.tenant,))
        return found[0] if found else None

    def _lease_rows(self, session: FileSession, key: Key, seq: int, depth: int, token: int) -> Iterator[ClaimedRow]:
        gap = tuple(event_id for (event_id,) in session.rows(self._fill(sql.GAP), (*key, seq)))
        for row_id, number, payload, attempts, redrives, free in session.rows(self._fill(sql.ROWS), (*key, seq, depth)):
            if not free:
                return
            session.change(self._fill(sql.LEASE), (self._owner, token, self._lease, row_id))
            yield ClaimedRow(row_id, key, number, payload, attempts, redrives, token, gap)
            gap = ()

    def _settle(self, session: FileSession, each: Settlement) -> bool:
        values = {
            "id": each.row.id, "token": each.row.token, "owner": self._owner, "state": each.state,
            "counts": each.counts, "error": each.error, "delay": each.delay,
        }  # fmt: skip
        if session.connection.execute(self._fill(sql.SETTLE), values).rowcount == 1:
            return True
        return bool(session.rows(self._fill(sql.SETTLED_BEFORE), (each.row.id, each.row.token)))

    def _follow_up(self, session: FileSession, settlements: Sequence[Settlement]) -> None:
        for each in settlements:
            if each.state == SENT and each.row.gap:
                session.change(self._fill(sql.CLOSE_GAPS), (*each.row.key, each.row.seq))
            if each.state == FAILED and self._policy == "skip":
                session.change(self._fill(sql.NOTE_GAP), (each.row.id,))
            if each.state == FAILED and self._policy == "park":
                session.change(self._fill(sql.PARK), (each.row.id,))
                session.change(self._fill(sql.SET_ASIDE))

    def _fill(self, statement: str) -> str:
        if statement not in self._filled:
            self._filled[statement] = self._words(spelled_out(statement, sql.WORDS))
        return self._filled[statement]
