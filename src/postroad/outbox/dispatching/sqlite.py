"""A dispatcher's rows in a SQLite file of the user's own; its one writer at a time makes every verb one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Final

from postroad.backoff import CHANCE
from postroad.connections import Row
from postroad.outbox.dialects import Phrases
from postroad.outbox.dispatching import sqlite_statements as sql
from postroad.outbox.dispatching.config import Policy
from postroad.outbox.dispatching.messages import FIRST_KEY, ClaimedRow, Gauges, Key, Lease, Settled, Settlement
from postroad.outbox.dispatching.store import with_phrases
from postroad.outbox.migrations import require
from postroad.outbox.rows import FAILED, PENDING, SENT

if TYPE_CHECKING:
    from postroad.connections import ApplicationFile, FileSession

_MOST_HELD: Final = 10_000
"""Keys that one look moves out of the way at the most."""


@dataclass(frozen=True, slots=True)
class _Head:
    """A row that comes first in its key, or among those of the key that nothing holds."""

    key: Key
    seq: int
    free: bool
    leased: bool
    redrives: int
    waited: bool = False
    behind: str | None = None
    """The state of an earlier row that stands in its way."""

    @classmethod
    def of(cls, found: Row, *, waited: bool = False) -> _Head:
        tenant, lane, seq, free, leased, redrives = found
        return cls(Key(tenant, lane), seq, bool(free), bool(leased), redrives, waited)


class SQLiteDispatchStore:
    """Claims and settles in short transactions on the file."""

    def __init__(self, file: ApplicationFile, words: Phrases, *, owner: str, lease: float, policy: Policy) -> None:
        self._file = file
        self._words = words
        self._owner = owner
        self._lease = lease
        self._policy = policy
        self._filled: dict[str, str] = {}

    def open(self) -> None:
        require(self._file, self._words)
        with self._file.transaction() as session:
            if session.change(self._fill(sql.SET_POLICY), (self._policy, self._policy)):
                # What a failed row holds back depends on the policy, so all is looked at anew.
                session.change(self._fill(sql.RELEASE_ALL))

    def claim(self, limit: int, *, after: Key, leaving: int = 0) -> list[ClaimedRow]:
        # Most looks find nothing; they take no lock that would hold up those who add.
        with self._file.reading() as session:
            stuck: list[_Head] = []
            due = next(chain(self._waited(session), self._due(session, after, stuck)), None)
        if due is None and not stuck:
            return []
        with self._file.transaction() as session:
            stuck = []
            walked = islice(self._due(session, after, stuck), leaving, leaving + limit)
            heads = _in_turns(islice(self._waited(session), limit), walked)[:limit]
            self._hold(session, stuck[:_MOST_HELD])
            token = session.rows(self._fill(sql.NEXT_NUMBER))[0][0]
            depth = max(limit // max(len(heads), 1), 1) if after == FIRST_KEY else 1
            return [row for head in heads for row in self._lease_rows(session, head, depth, token)]

    def renew(self, rows: Sequence[ClaimedRow]) -> set[Lease]:
        renew = self._fill(sql.RENEW)
        with self._file.transaction() as session:
            return {row.lease for row in rows if session.change(renew, (self._lease, *row.lease, self._owner)) == 1}

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

    def gauges(self) -> Gauges:
        with self._file.reading() as session:
            return Gauges(*session.rows(self._fill(sql.GAUGES))[0])

    def close(self) -> None:
        """The file's own connections are kept for others."""

    def _due(self, session: FileSession, after: Key, stuck: list[_Head]) -> Iterator[_Head]:
        """The first rows of keys that may be published now; those that only stand in the way go into `stuck`."""
        key: Key | None = after
        while key is not None and (head := self._head_behind(session, key)) is not None:
            key = head.key
            before = self._before(session, head, "1, 2")
            if head.free and before is None:
                if not self._redriven_too_soon(session, head):
                    yield head
            elif not head.leased:
                stuck.append(replace(head, behind=before))

    def _waited(self, session: FileSession) -> Iterator[_Head]:
        """Rows that were tried before and are due again, the longest due first."""
        for found in session.connection.execute(self._fill(sql.WAITED)):
            head = _Head.of(found, waited=True)
            if self._before(session, head, "0, 1, 2") is None and not self._redriven_too_soon(session, head):
                yield head

    def _head_behind(self, session: FileSession, key: Key) -> _Head | None:
        found = session.rows(self._fill(sql.NEXT_LANE), key) or session.rows(self._fill(sql.NEXT_TENANT), (key.tenant,))
        return _Head.of(found[0]) if found else None

    def _before(self, session: FileSession, head: _Head, among: str) -> str | None:
        """The state of an earlier row of the key that stands in the way, None when there is none."""
        statement = self._fill(sql.BEFORE.replace("{among}", among))
        found = session.rows(statement, (*head.key, head.seq, self._policy == "skip"))
        return found[0][0] if found else None

    def _redriven_too_soon(self, session: FileSession, head: _Head) -> bool:
        """Whether somebody holds a later row of a key that goes on without what failed."""
        skips = self._policy == "skip" and head.redrives > 0
        return skips and bool(session.rows(self._fill(sql.ANY_LEASED), head.key))

    def _hold(self, session: FileSession, stuck: Sequence[_Head]) -> None:
        """Move rows out of the way of the next looks; the table's trigger brings them back.

        The policy in force decides, as it does in the trigger: another dispatcher may have been given another one.
        """
        ((policy,),) = session.rows(self._fill(sql.POLICY))
        for head in stuck:
            if policy == "skip" and head.behind not in (None, PENDING):
                continue
            if head.behind is None:
                session.change(self._fill(sql.HOLD), (*head.key, head.seq))
                continue
            parked = head.behind != PENDING and bool(session.rows(self._fill(sql.IS_PARKED), head.key))
            values = {"tenant": head.key.tenant, "lane": head.key.lane, "seq": head.seq, "parked": parked}
            session.connection.execute(self._fill(sql.HOLD_BEHIND), values)

    def _lease_rows(self, session: FileSession, head: _Head, depth: int, token: int) -> Iterator[ClaimedRow]:
        """Lease the head and free rows behind it; one that was tried before travels alone."""
        key, most = head.key, 1 if head.waited else depth
        gap = tuple(event_id for (event_id,) in session.rows(self._fill(sql.GAP), (*key, head.seq)))
        for row_id, number, payload, attempts, redrives, free in session.rows(
            self._fill(sql.ROWS), (*key, head.seq, most)
        ):
            if not free:
                return
            session.change(self._fill(sql.LEASE), (self._owner, token, self._lease, row_id))
            yield ClaimedRow(row_id, key, number, payload, attempts, redrives, token, gap, head.waited)
            gap = ()

    def _settle(self, session: FileSession, each: Settlement) -> bool:
        values = {
            "id": each.row.id,
            "token": each.row.token,
            "owner": self._owner,
            "state": each.state,
            "counts": each.counts,
            "error": each.error,
            "delay": each.delay,
        }
        if session.connection.execute(self._fill(sql.SETTLE), values).rowcount == 1:
            return True
        return bool(session.rows(self._fill(sql.SETTLED_BEFORE), (each.row.id, each.row.token, each.state)))

    def _follow_up(self, session: FileSession, settlements: Sequence[Settlement]) -> None:
        for each in settlements:
            if each.state == SENT and each.row.gap:
                session.change(self._fill(sql.CLOSE_GAPS), (*each.row.key, each.row.seq))
            if each.state == FAILED and self._policy == "skip":
                session.change(self._fill(sql.NOTE_GAP), (each.row.id,))
            if each.state == FAILED and self._policy == "park":
                session.change(self._fill(sql.PARK), (each.row.id,))
                session.change(self._fill(sql.SET_ASIDE), (*each.row.key, each.row.seq))

    def _fill(self, statement: str) -> str:
        if statement not in self._filled:
            self._filled[statement] = self._words(with_phrases(statement, sql.WORDS))
        return self._filled[statement]


def _in_turns(waited: Iterable[_Head], walked: Iterable[_Head]) -> list[_Head]:
    """Both kinds in turns, so that neither keeps the other waiting; which comes first is left to chance."""
    kinds = CHANCE.sample([waited, walked], 2)
    return [head for pair in zip_longest(*kinds) for head in pair if head is not None]
