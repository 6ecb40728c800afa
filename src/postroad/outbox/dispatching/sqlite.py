"""A dispatcher's rows in a SQLite file, where one writer at a time makes every method atomic, and its wake-up."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from postroad.backoff import CHANCE
from postroad.connections import Row
from postroad.outbox.dispatching.config import Policy
from postroad.outbox.dispatching.store import FIRST_KEY, ClaimedRow, Gauges, Key, Lease, Settled, Settlement
from postroad.outbox.rows import FAILED, PENDING, SENT
from postroad.outbox.schema import Tables, require
from postroad.telemetry import get_logger

if TYPE_CHECKING:
    from postroad.connections import ApplicationFile, FileSession

_PHRASES: Final = {
    # Bytes: a key that is not UTF-8, or no text, cannot be bound again.
    "head": "rowid, iif(typeof(tenant) = 'blob', x'ff', CAST(coalesce(tenant, '') AS BLOB)),"
    " iif(typeof(lane) = 'text', CAST(lane AS BLOB), x'ff'), seq, {free}, coalesce(lease_until, '') > {now},"
    " CAST(redrives AS INTEGER)",
    "free": "(state = 'PENDING' AND {due} AND coalesce(lease_until, '') <= {now})",
    # A row that was due when it was written is due, even if the clock was set back since.
    "due": "next_attempt <= max({now}, coalesce(createdat, ''), coalesce(updatedat, ''))",
    "ahead": "held = 1 AND state = 'PENDING' AND next_attempt > {now} AND lasterror IS NOT NULL"
    " AND updatedat > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 second')",
    "open": "state NOT IN ('SENT', 'SKIPPED')",
    "later": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ? || ' seconds')",
}
"""Parts of several statements; a phrase may use those that come after it."""

# The first row of the next key that is not held, in the same tenant and in the next one.
_NEXT_LANE: Final = """
SELECT {head} FROM {outbox} WHERE {open} AND held = 0 AND coalesce(tenant, '') = ? AND lane > ?
 ORDER BY lane, seq LIMIT 1
"""
_NEXT_TENANT: Final = """
SELECT {head} FROM {outbox} WHERE {open} AND held = 0 AND coalesce(tenant, '') > ?
 ORDER BY coalesce(tenant, ''), lane, seq LIMIT 1
"""
# Rows whose retry is due.
_WAITED: Final = """
SELECT {head} FROM {outbox} WHERE held = 1 AND state = 'PENDING' AND next_attempt <= {now} AND {free}
 ORDER BY next_attempt
"""
# The state of an earlier row of the key that blocks it: one that is held, or any.
_HELD_BEFORE: Final = """
SELECT state FROM {outbox}
 WHERE {open} AND held IN (1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND seq < ?
   AND (NOT ? OR state = 'PENDING') LIMIT 1
"""
_ANY_BEFORE: Final = _HELD_BEFORE.replace("(1, 2)", "(0, 1, 2)")
_ANY_LEASED: Final = """
SELECT 1 FROM {outbox}
 WHERE {open} AND held IN (0, 1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND lease_until > {now} LIMIT 1
"""
_ROWS: Final = """
SELECT rowid, id, seq, CAST(payload AS TEXT), CAST(attempts AS INTEGER), CAST(redrives AS INTEGER), {free}
  FROM {outbox}
 WHERE {open} AND held IN (0, 1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND seq >= ? ORDER BY seq LIMIT ?
"""
_HOLD: Final = """
UPDATE {outbox} SET held = CASE WHEN state = 'PENDING' THEN 1 ELSE 2 END
 WHERE {open} AND held = 0 AND coalesce(tenant, '') = ? AND lane = ? AND seq = ?
"""
# In a parked key, the rows behind are parked too.
_HOLD_BEHIND: Final = """
UPDATE {outbox} SET held = 2, state = CASE WHEN :parked AND state = 'PENDING' THEN 'PARKED' ELSE state END,
       updatedat = CASE WHEN :parked THEN {now} ELSE updatedat END
 WHERE rowid IN (
   SELECT rowid FROM {outbox} WHERE {open} AND held = 0 AND coalesce(tenant, '') = :tenant AND lane = :lane
      AND seq >= :seq ORDER BY seq LIMIT 100)
"""
_IS_PARKED: Final = "SELECT 1 FROM {parked} WHERE tenant = ? AND lane = ?"
_GAP: Final = "SELECT event_id FROM {gaps} WHERE tenant = ? AND lane = ? AND seq < ? ORDER BY seq"
_NEXT_NUMBER: Final = "UPDATE {meta} SET last_token = last_token + 1 RETURNING last_token"
_LEASE: Final = """
UPDATE {outbox} SET lease_owner = ?, lease_token = ?, lease_until = {later} WHERE rowid = ? AND id = ?
"""
# A row whose own key or id is not UTF-8: no other statement can name it.
_FAIL_UNREADABLE: Final = """
UPDATE {outbox} SET state = CASE state WHEN 'PENDING' THEN 'FAILED' ELSE state END, held = 2, lasterror = ?,
       attempts = max(attempts, 0) + 1, updatedat = {now}, lease_owner = NULL, lease_until = NULL WHERE rowid = ?
"""
_RENEW: Final = """
UPDATE {outbox} SET lease_until = {later}
 WHERE id = ? AND state = 'PENDING' AND lease_token = ? AND lease_owner = ?
"""
# A row that was written in a time that the clock repeats waits for its whole pause once more, and not for that time.
_ANY_AHEAD: Final = "SELECT 1 FROM {outbox} WHERE {ahead} LIMIT 1"
_RESTART_PAUSES: Final = """
UPDATE {outbox} SET updatedat = {now}, next_attempt = coalesce(strftime('%Y-%m-%dT%H:%M:%fZ',
       julianday('now') + julianday(next_attempt) - julianday(updatedat)), next_attempt) WHERE {ahead}
"""
_SETTLE: Final = """
UPDATE {outbox} SET
  state = :state,
  attempts = CASE WHEN :counts THEN max(attempts, 0) + 1 ELSE attempts END,
  lasterror = CASE WHEN :state = 'SENT' THEN NULL ELSE coalesce(:error, lasterror) END,
  next_attempt = CASE WHEN :delay IS NULL THEN next_attempt
                      ELSE strftime('%Y-%m-%dT%H:%M:%fZ', 'now', :delay || ' seconds') END,
  updatedat = CASE WHEN :counts OR :error IS NOT NULL THEN {now} ELSE updatedat END,
  held = CASE WHEN :state = 'FAILED' THEN 2 WHEN :delay IS NOT NULL THEN 1 ELSE held END,
  lease_owner = NULL, lease_until = NULL
WHERE id = :id AND state = 'PENDING' AND lease_token = :token AND lease_owner = :owner
"""
_AGE: Final = "SELECT max((julianday('now') - julianday(createdat)) * 86400, 0) FROM {outbox} WHERE id = ?"
_SETTLED_BEFORE: Final = """
SELECT 1 FROM {outbox} WHERE id = ? AND lease_token = ? AND lease_owner IS NULL AND state = ?
"""
_NOTE_GAP: Final = """
INSERT INTO {gaps} (tenant, lane, seq, event_id)
SELECT coalesce(tenant, ''), lane, seq, event_id FROM {outbox}
 WHERE {open} AND held IN (0, 1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND seq = ? ON CONFLICT DO NOTHING
"""
_CLOSE_GAPS: Final = "DELETE FROM {gaps} WHERE tenant = ? AND lane = ? AND seq < ?"
_PARK: Final = """
INSERT INTO {parked} (tenant, lane, event_id)
SELECT coalesce(tenant, ''), lane, event_id FROM {outbox}
 WHERE {open} AND held IN (0, 1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND seq = ? ON CONFLICT DO NOTHING
"""
_SET_ASIDE: Final = """
UPDATE {outbox} SET state = 'PARKED', held = 2, updatedat = {now}, lease_owner = NULL, lease_until = NULL
 WHERE {open} AND held IN (0, 1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND seq > ? AND state = 'PENDING'
"""
_SET_TARGET_ERROR: Final = """
UPDATE {meta} SET target_error = :error, target_error_at = CASE WHEN :error IS NOT NULL THEN {now} END,
       paused_until = CASE WHEN :error IS NOT NULL
                           THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', :pause || ' seconds') END
 WHERE target_error IS NOT NULL OR :error IS NOT NULL
"""
_GAUGES: Final = """
SELECT count(*) FILTER (WHERE state = 'PENDING'),
       coalesce(max((julianday('now') - julianday(min(createdat) FILTER (WHERE state = 'PENDING'))) * 86400, 0), 0),
       count(*) FILTER (WHERE state NOT IN ('PENDING', 'PARKED'))
  FROM {outbox} WHERE state NOT IN ('SENT', 'SKIPPED')
"""
_POLICY: Final = "SELECT policy FROM {meta}"
_SET_POLICY: Final = "UPDATE {meta} SET policy = ? WHERE policy <> ?"
_RELEASE_ALL: Final = "UPDATE {outbox} SET held = 0 WHERE {open} AND held IN (1, 2) AND state = 'PENDING'"
_MOST_HELD: Final = 10_000
"""The number of keys that one claim holds back at the most."""


_NO_NUMBER: Final = "seq of the row is not a number"


class _Unreadable(Exception):
    """The row `rowid` can be claimed by no statement; `key` and `seq` are its place in its key if that can be read."""

    def __init__(self, rowid: int, what: str, key: Key | None = None, seq: int = 0) -> None:
        super().__init__(f"malformed: the {what}")
        self.rowid, self.key, self.seq = rowid, key, seq


@dataclass(frozen=True, slots=True)
class _Head:
    """The first row of a key, or the first one that is not held."""

    key: Key
    seq: int
    free: bool
    leased: bool
    redrives: int
    waited: bool = False
    behind: str | None = None
    """The state of an earlier row that blocks it."""

    @classmethod
    def of(cls, found: Row, *, waited: bool = False) -> _Head:
        rowid, tenant, lane, seq, free, leased, redrives = found
        try:
            key = Key(tenant.decode(), lane.decode())
        except UnicodeDecodeError:
            raise _Unreadable(rowid, "tenant or lane of the row is not UTF-8 text") from None
        if not isinstance(seq, int):
            raise _Unreadable(rowid, _NO_NUMBER)
        return cls(key, seq, bool(free), bool(leased), redrives, waited)


class SQLiteDispatchStore:
    """Claims and settles in short transactions on the file."""

    def __init__(self, file: ApplicationFile, tables: Tables, *, owner: str, lease: float, policy: Policy) -> None:
        self._file = file
        self._sql = tables.with_phrases(_PHRASES)
        self._owner = owner
        self._lease = lease
        self._policy = policy

    def open(self) -> None:
        require(self._file, self._sql)
        with self._file.transaction() as session:
            if session.change(self._sql(_SET_POLICY), (self._policy, self._policy)):
                # Which rows a failed row holds back depends on the policy, so all are released and looked at again.
                session.change(self._sql(_RELEASE_ALL))

    def claim(self, limit: int, *, after: Key, leaving: int = 0) -> list[ClaimedRow]:
        while True:
            try:
                return self._claim(limit, after, leaving)
            except _Unreadable as row:
                # It must not keep the rows of all other keys from being claimed.
                self._fail_unreadable(row)

    def _claim(self, limit: int, after: Key, leaving: int) -> list[ClaimedRow]:
        # Most claims find nothing; they take no lock that would delay those who add events.
        with self._file.reading() as session:
            stuck: list[_Head] = []
            due = next(chain(self._waited(session), self._due(session, after, stuck)), None)
        if due is None and not stuck:
            return []
        with self._file.transaction() as session:
            stuck = []
            walked = islice(self._due(session, after, stuck), leaving, leaving + limit)
            # Both kinds in turns, so that neither delays the other; chance decides which comes first.
            kinds = CHANCE.sample([islice(self._waited(session), limit), walked], 2)
            heads = [head for pair in zip_longest(*kinds) for head in pair if head is not None][:limit]
            self._hold(session, stuck[:_MOST_HELD])
            token = session.rows(self._sql(_NEXT_NUMBER))[0][0]
            depth = max(limit // max(len(heads), 1), 1) if after == FIRST_KEY else 1
            return [row for head in heads for row in self._lease_rows(session, head, depth, token)]

    def renew(self, rows: Sequence[ClaimedRow]) -> set[Lease]:
        renew = self._sql(_RENEW)
        with self._file.transaction() as session:
            return {row.lease for row in rows if session.change(renew, (self._lease, *row.lease, self._owner)) == 1}

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        ordered = sorted(settlements, key=lambda each: (each.row.key, each.row.seq))
        with self._file.transaction() as session:
            mine = [each for each in ordered if self._settle(session, each)]
            self._follow_up(session, mine)
            age = self._sql(_AGE)
            return [Settled(each, session.rows(age, (each.row.id,))[0][0] or 0.0) for each in mine]

    def restart_pauses(self) -> None:
        with self._file.reading() as session:
            any_ahead = session.rows(self._sql(_ANY_AHEAD))
        if any_ahead:
            with self._file.transaction() as session:
                session.change(self._sql(_RESTART_PAUSES))

    def set_target_error(self, error: str | None, *, pause: float = 0.0) -> None:
        with self._file.transaction() as session:
            session.connection.execute(self._sql(_SET_TARGET_ERROR), {"error": error, "pause": pause})

    def gauges(self) -> Gauges:
        with self._file.reading() as session:
            return Gauges(*session.rows(self._sql(_GAUGES))[0])

    def close(self) -> None:
        """Do nothing: the connections to the file are shared."""

    def _due(self, session: FileSession, after: Key, stuck: list[_Head]) -> Iterator[_Head]:
        """Yield the first rows of keys that may be published now; add those that block their keys to `stuck`."""
        key = after
        while found := (
            session.rows(self._sql(_NEXT_LANE), key) or session.rows(self._sql(_NEXT_TENANT), (key.tenant,))
        ):
            head = _Head.of(found[0])
            key = head.key
            before = self._before(session, head, _HELD_BEFORE)
            if head.free and before is None:
                if not self._redriven_too_soon(session, head):
                    yield head
            elif not head.leased:
                stuck.append(replace(head, behind=before))

    def _waited(self, session: FileSession) -> Iterator[_Head]:
        """Yield rows whose retry is due, the longest due first."""
        for found in session.connection.execute(self._sql(_WAITED)):
            head = _Head.of(found, waited=True)
            if self._before(session, head, _ANY_BEFORE) is None and not self._redriven_too_soon(session, head):
                yield head

    def _before(self, session: FileSession, head: _Head, statement: str) -> str | None:
        """Return the state of an earlier row of the key that blocks this one, None if there is none."""
        found = session.rows(self._sql(statement), (*head.key, head.seq, self._policy == "skip"))
        return found[0][0] if found else None

    def _redriven_too_soon(self, session: FileSession, head: _Head) -> bool:
        """Say whether a later row of the key is leased, where keys go on without their failed rows."""
        skips = self._policy == "skip" and head.redrives > 0
        return skips and bool(session.rows(self._sql(_ANY_LEASED), head.key))

    def _hold(self, session: FileSession, stuck: Sequence[_Head]) -> None:
        """Hold rows back from the next claims; a trigger of the table releases them.

        The policy in the database decides, as it does in the trigger: other dispatchers may be configured otherwise.
        """
        ((policy,),) = session.rows(self._sql(_POLICY))
        for head in stuck:
            if policy == "skip" and head.behind not in (None, PENDING):
                continue
            if head.behind is None:
                session.change(self._sql(_HOLD), (*head.key, head.seq))
                continue
            parked = head.behind != PENDING and bool(session.rows(self._sql(_IS_PARKED), head.key))
            values = {"tenant": head.key.tenant, "lane": head.key.lane, "seq": head.seq, "parked": parked}
            session.connection.execute(self._sql(_HOLD_BEHIND), values)

    def _lease_rows(self, session: FileSession, head: _Head, depth: int, token: int) -> Iterator[ClaimedRow]:
        """Lease the head and free rows behind it; a row that was tried before is leased alone."""
        key, most = head.key, 1 if head.waited else depth
        gap = tuple(event_id for (event_id,) in session.rows(self._sql(_GAP), (*key, head.seq)))
        for rowid, row_id, seq, payload, attempts, redrives, free in session.rows(
            self._sql(_ROWS), (*key, head.seq, most)
        ):
            if not free:
                return
            if not isinstance(seq, int):
                raise _Unreadable(rowid, _NO_NUMBER)
            if session.change(self._sql(_LEASE), (self._owner, token, self._lease, rowid, row_id)) != 1:
                raise _Unreadable(rowid, "id of the row is not UTF-8 text", key, seq)
            # A payload that is not UTF-8 holds an escape that JSON does not have: the row is malformed.
            yield ClaimedRow(row_id, key, seq, payload, attempts, redrives, token, gap, head.waited)
            gap = ()

    def _fail_unreadable(self, row: _Unreadable) -> None:
        with self._file.transaction() as session:
            session.change(self._sql(_FAIL_UNREADABLE), (str(row), row.rowid))
            if row.key is not None:
                self._follow_failure(session, row.key, row.seq)
        get_logger("outbox").warning("outbox_failed", error=str(row), rowid=row.rowid)

    def _settle(self, session: FileSession, each: Settlement) -> bool:
        values = {
            "id": each.row.id,
            "token": each.row.token,
            "owner": self._owner,
            "state": each.state,
            "counts": each.kind != "held",
            "error": each.error,
            "delay": each.delay,
        }
        if session.connection.execute(self._sql(_SETTLE), values).rowcount == 1:
            return True
        return bool(session.rows(self._sql(_SETTLED_BEFORE), (each.row.id, each.row.token, each.state)))

    def _follow_up(self, session: FileSession, settlements: Sequence[Settlement]) -> None:
        for each in settlements:
            if each.state == SENT and each.row.gap:
                session.change(self._sql(_CLOSE_GAPS), (*each.row.key, each.row.seq))
            if each.state == FAILED:
                self._follow_failure(session, each.row.key, each.row.seq)

    def _follow_failure(self, session: FileSession, key: Key, seq: int) -> None:
        if self._policy == "skip":
            session.change(self._sql(_NOTE_GAP), (*key, seq))
        if self._policy == "park":
            session.change(self._sql(_PARK), (*key, seq))
            session.change(self._sql(_SET_ASIDE), (*key, seq))


_LOOK_SECONDS: Final = 0.02
_VERSION: Final = "PRAGMA data_version"


class Watcher:
    """A thread that calls `wake` when the file has changed; it reads the version of the file 50 times a second."""

    def __init__(self, file: ApplicationFile, wake: Callable[[], None]) -> None:
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
                # The dispatcher polls meanwhile.
                self._stop.wait(_LOOK_SECONDS * 10)

    def _compare(self, connection: sqlite3.Connection) -> None:
        seen = None
        while not self._stop.wait(_LOOK_SECONDS):
            (version,) = connection.execute(_VERSION).fetchone()
            if version != seen:
                seen = version
                self._wake()
