"""The tables of agents in the embedded file, and what is read from them: numbers of agents, events, receipts.

An event is stored once, under its place. A subscriber's row is its number (`lane`) and that place, so that a range of
rows is one agent's queue in the order of release, without a second index. Rows stay after they were acked, for replays
and to recognise what is published again. Behind the head of a queue only what is not settled is stored: rows that are
leased or were released (`agent_lease`), and rows that wait for their group (`agent_aside`).
"""

from __future__ import annotations

import os
import re
import zlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from postroad.agents.model import not_found, time_text
from postroad.agents.stream import Message
from postroad.engine import Engine, Schema, Transaction, one, text_of
from postroad.queues import MessageIds, PeekedMessage, moment

DAMAGED: Final = "what is stored is not what was published"
HELD: Final = 1 << 60
"""Places from here on belong to events that wait for the end of the hold-back window."""
NEVER: Final = 1 << 62
"""A time of the monotonic clock that never comes."""
_TIME: Final = "strftime('%Y-%m-%dT%H:%M:%S', {ms} / 1000, 'unixepoch') || printf('.%03dZ', {ms} % 1000)"
_ZEROES: Final = "0" * 56

_TABLES: Final = """
CREATE TABLE agent (
    num INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,          -- active, deleted, or named: somebody listens to an id that nobody registered
    created_ms INTEGER NOT NULL,
    total INTEGER NOT NULL,       -- 1: one order over all producers
    open INTEGER NOT NULL,        -- 1: anybody may listen
    token_hash TEXT,
    former_hash TEXT,
    former_until REAL NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE agent_pair (
    producer INTEGER NOT NULL,
    subscriber INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    after INTEGER NOT NULL,       -- the newest sequence of the producer's shard when it was made
    paused INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (producer, subscriber)
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_pair_by_subscriber ON agent_pair (subscriber, producer);

CREATE TABLE agent_grant (
    producer INTEGER NOT NULL,
    subscriber INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (producer, subscriber)
) STRICT, WITHOUT ROWID;

CREATE TABLE agent_event (
    place INTEGER PRIMARY KEY,
    producer INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    occurred_ms INTEGER NOT NULL,
    arrived_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    sequence TEXT NOT NULL,
    traceparent TEXT,
    crc INTEGER NOT NULL,
    data BLOB NOT NULL            -- JSON
) STRICT;
CREATE INDEX agent_event_by_id ON agent_event (producer, event_id);

CREATE TABLE agent_row (          -- one for each event and subscriber
    lane INTEGER NOT NULL,
    place INTEGER NOT NULL,
    producer INTEGER NOT NULL,
    late INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (lane, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE agent_held_row (     -- the same before their release, found by event
    place INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    producer INTEGER NOT NULL,
    PRIMARY KEY (place, lane)
) STRICT, WITHOUT ROWID;

CREATE TABLE agent_lane (         -- made when somebody first receives, or with a hold-back window
    lane INTEGER PRIMARY KEY,
    head INTEGER NOT NULL DEFAULT 0,        -- the first place that no receiver has looked at
    newest_ms INTEGER NOT NULL DEFAULT -1,  -- the youngest timestamp that was released
    expired INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE agent_lease (        -- behind the head: with a receiver, or back from one
    lane INTEGER NOT NULL,
    turn INTEGER NOT NULL,        -- the order within a group: the place, or a later number after a redrive
    place INTEGER NOT NULL,
    producer INTEGER NOT NULL,
    grp INTEGER NOT NULL,         -- a producer, or 0: all of an agent whose order is total
    visible_us INTEGER NOT NULL,  -- monotonic clock
    held INTEGER NOT NULL,        -- 1: the newest receipt is valid
    fence INTEGER NOT NULL,       -- the newest receipt's
    receives INTEGER NOT NULL,
    first_us INTEGER NOT NULL,    -- wall clock
    leased_us INTEGER NOT NULL,   -- monotonic clock
    due_wall_us INTEGER,          -- released until, wall clock: after a reboot it is all we know
    error TEXT,
    replay INTEGER NOT NULL,
    PRIMARY KEY (lane, turn)
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_lease_by_group ON agent_lease (lane, grp);

CREATE TABLE agent_aside (        -- behind the head: waits for its group
    lane INTEGER NOT NULL,
    grp INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    place INTEGER NOT NULL,
    producer INTEGER NOT NULL,
    replay INTEGER NOT NULL,
    PRIMARY KEY (lane, grp, turn)
) STRICT, WITHOUT ROWID;

CREATE TABLE agent_group (        -- groups that have leases or rows aside
    lane INTEGER NOT NULL,
    grp INTEGER NOT NULL,
    visible_us INTEGER NOT NULL,  -- locked until, monotonic clock
    PRIMARY KEY (lane, grp)
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_group_by_time ON agent_group (lane, visible_us);

CREATE TABLE agent_dead (
    lane INTEGER NOT NULL,
    n INTEGER NOT NULL,           -- in the order of dying
    place INTEGER NOT NULL,
    producer INTEGER NOT NULL,
    receives INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    error TEXT,
    reason TEXT,
    PRIMARY KEY (lane, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE agent_counter (next INTEGER NOT NULL, swept_lane INTEGER NOT NULL) STRICT;
INSERT INTO agent_counter VALUES (1, 0);
"""

_CREATED_MS: Final = _TIME.format(ms="created_ms")
_PAIR_CREATED_US: Final = _TIME.format(ms="(pair.created_us / 1000)")
_GRANTED_CREATED_MS: Final = _TIME.format(ms="granted.created_ms")
_OCCURRED_MS: Final = _TIME.format(ms="occurred_ms")
_ARRIVED_US: Final = _TIME.format(ms="(arrived_us / 1000)")
_VIEWS: Final = f"""
CREATE VIEW Agents (agentId, createdAt, "order", accept, tokenHash, queueUrl, state) AS
SELECT id, {_CREATED_MS}, iif(total, 'total', 'producer'), iif(open, 'all', 'listed'),
    token_hash, NULL, state
FROM agent WHERE state <> 'named';

CREATE VIEW Subscribers (producerId, subscriberId, createdAt, state, heldFrom) AS
SELECT producer.id, subscriber.id, {_PAIR_CREATED_US}, iif(paused, 'paused', 'active'), NULL
FROM agent_pair AS pair JOIN agent AS producer ON producer.num = pair.producer
JOIN agent AS subscriber ON subscriber.num = pair.subscriber;

CREATE VIEW AgentGrants (producerId, subscriberId, createdAt) AS
SELECT producer.id, subscriber.id, {_GRANTED_CREATED_MS}
FROM agent_grant AS granted JOIN agent AS producer ON producer.num = granted.producer
JOIN agent AS subscriber ON subscriber.num = granted.subscriber;

CREATE VIEW SubscriberEvents (
    subscriberId, "timestamp", occurredAt, producerId, eventId, eventType, data, sequenceNumber, arrivedAt, expiresAt
) AS
SELECT subscriber.id,
    {_OCCURRED_MS} || '#' || producer.id || '#' || substr('{_ZEROES}' || sequence, -56),
    {_OCCURRED_MS}, producer.id, event_id, type, CAST(data AS TEXT), sequence,
    {_ARRIVED_US}, (expires_us + 999999) / 1000000
FROM (SELECT lane, place FROM agent_row UNION ALL SELECT lane, place FROM agent_held_row) AS held
JOIN agent_event AS event ON event.place = held.place
JOIN agent AS producer ON producer.num = event.producer JOIN agent AS subscriber ON subscriber.num = held.lane;
"""  # noqa: S608 - constants

_EVENT_TYPES: Final = f"""
ALTER TABLE agent_pair ADD COLUMN types TEXT;  -- a JSON array of the types that are delivered; NULL: all
DROP VIEW Subscribers;
CREATE VIEW Subscribers (producerId, subscriberId, createdAt, state, heldFrom, eventTypes) AS
SELECT producer.id, subscriber.id, {_PAIR_CREATED_US}, iif(paused, 'paused', 'active'), NULL, types
FROM agent_pair AS pair JOIN agent AS producer ON producer.num = pair.producer
JOIN agent AS subscriber ON subscriber.num = pair.subscriber;
"""  # noqa: S608 - constants

SCHEMA: Final = Schema("agents", (_TABLES + _VIEWS, _EVENT_TYPES))

_AFTER_REBOOT: Final = (
    "UPDATE agent_lease SET held = 0, visible_us = max(0, ?1 + coalesce(due_wall_us, 0) - ?2)",
    """
    UPDATE agent_group SET visible_us = iif(visible_us = ?3, ?3, coalesce((
        SELECT max(lease.visible_us) FROM agent_lease AS lease
        WHERE lease.lane = agent_group.lane AND lease.grp = agent_group.grp), 0))
    """,
)


def prepare(engine: Engine) -> None:
    """Make the tables. After a reboot end all leases, whose clock is gone, and compute releases from the wall clock."""

    def after_reboot(tx: Transaction) -> None:
        times = (engine.monotonic_us(), engine.now_us())
        tx.connection.execute(_AFTER_REBOOT[0], times)
        tx.connection.execute(_AFTER_REBOOT[1], (*times, NEVER))

    engine.prepare(SCHEMA, after_reboot=after_reboot)


_NUMBER: Final = "SELECT num FROM agent WHERE id = ?"
_ACTIVE: Final = "SELECT num FROM agent WHERE id = ? AND state = 'active'"
_ID: Final = "SELECT id FROM agent WHERE num = ?"
_NAME: Final = "INSERT INTO agent (id, state, created_ms, total, open) VALUES (?, 'named', 0, 0, 0)"
_NEXT: Final = "UPDATE agent_counter SET next = next + ? RETURNING next"
_EVENT: Final = """
SELECT event.producer, CAST(event_id AS BLOB), CAST(type AS BLOB), occurred_ms, arrived_us, expires_us,
    CAST(sequence AS BLOB), CAST(traceparent AS BLOB), crc, data, coalesce(held.late, 0)
FROM agent_event AS event LEFT JOIN agent_row AS held ON held.lane = ?1 AND held.place = event.place
WHERE event.place = ?2
"""
_REMEMBERED: Final = 10_000
_PLACE_BITS: Final = 60
_SALT_MASK: Final = (1 << 28) - 1
_ROW_MASK: Final = (1 << 62) - 1
_RECEIPT = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def number(connection: apsw.Connection, agent_id: str) -> int | None:
    """Return the number of an id; None when nobody registered it or listens to it."""
    row = one(connection, _NUMBER, (agent_id,))
    return None if row is None else int(row[0])


def active(connection: apsw.Connection, agent_id: str) -> int:
    """Return the number of a registered agent, or raise `AgentNotFound`."""
    row = one(connection, _ACTIVE, (agent_id,))
    if row is None:
        raise not_found(agent_id)
    return int(row[0])


def named(tx: Transaction, agent_id: str) -> int:
    """Return the number of an id, and give it one if it has none."""
    found = number(tx.connection, agent_id)
    if found is None:
        tx.connection.execute(_NAME, (agent_id,))
        return tx.connection.last_insert_rowid()
    return found


def next_places(tx: Transaction, count: int) -> int:
    """Reserve this many numbers that were never used before, and return the first."""
    row = one(tx.connection, _NEXT, (count,))
    return int(row[0]) - count


def channel(agent: int) -> str:
    return f"a{agent}"


def microseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


class Receipt(NamedTuple):
    """The proof of one receive: agent and turn find the lease, and no other receive has the same fence."""

    agent: int
    turn: int
    fence: int

    @property
    def text(self) -> str:
        return f"{self.agent}-{self.turn}-{self.fence}"

    @classmethod
    def read(cls, text: object) -> Receipt:
        """Return the receipt; one that matches nothing if the text is not a receipt."""
        match = _RECEIPT.fullmatch(text) if isinstance(text, str) and text.isascii() else None
        return cls(-1, -1, -1) if match is None else cls(*map(int, match.groups()))

    @staticmethod
    def new_fence() -> int:
        """Return a number that no other receive has. A receive count would not do: a replay starts to count anew."""
        return int.from_bytes(os.urandom(7))


class Row(NamedTuple):
    """A message that may be leased: its place, and what its former leases left."""

    turn: int
    place: int
    producer: int
    receives: int
    first_us: int | None
    error: str | bytes | None
    replay: int
    aside: bool


class StoredEvent(NamedTuple):
    """An event as it is stored; its texts are bytes until it is known that they can be decoded."""

    producer: int
    event_id: bytes
    type: bytes
    occurred_ms: int
    arrived_us: int
    expires_us: int
    sequence: bytes
    traceparent: bytes | None
    crc: int
    data: bytes
    late: int

    @property
    def is_damaged(self) -> bool:
        try:
            for text in (self.event_id, self.type, self.sequence, self.traceparent or b""):
                text.decode()
        except UnicodeDecodeError:
            return True
        return zlib.crc32(self.data) != self.crc


@lru_cache(maxsize=_REMEMBERED)
def _message_ids(salt: int, agent: int) -> MessageIds:
    """Return the message ids of an agent's queue: the 34 bits of its number follow the bits of the file."""
    return MessageIds((salt & _SALT_MASK) << 32 | agent >> 2)


def agent_and_place(salt: int, message_id: str) -> tuple[int, int] | None:
    """Return the agent and the place of a message id; None if it is not one of an agent of this file."""
    digits = message_id.replace("-", "")
    # The digit between them is the version of the UUID.
    bits, row_id = int(digits[:12] + digits[13:16], 16), int(digits[16:], 16) & _ROW_MASK
    if bits >> 32 != salt & _SALT_MASK:
        return None
    agent = (bits & 0xFFFF_FFFF) << 2 | row_id >> _PLACE_BITS
    return agent, row_id & ((1 << _PLACE_BITS) - 1)


class Reader:
    """Reads events and makes messages of them."""

    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._known: dict[int, str] = {}

    def agent_id(self, connection: apsw.Connection, num: int) -> str:
        """Return the id of a number. It is remembered, since neither ever changes."""
        found = self._known.get(num)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[num] = str(one(connection, _ID, (num,))[0])
        return found

    def event(self, connection: apsw.Connection, agent: int, place: int) -> StoredEvent | None:
        """Return the event at a place; None when it has expired and was removed."""
        row: Any = one(connection, _EVENT, (agent, place))
        return None if row is None else StoredEvent(*row)

    def message_id(self, agent: int, place: int) -> str:
        return _message_ids(self._salt, agent).text((agent & 3) << _PLACE_BITS | place)

    def place(self, agent: int, message_id: str) -> int | None:
        """Return the place of a message id of this agent; None when it is not one."""
        found = _message_ids(self._salt, agent).row_id(message_id)
        return None if found is None or found >> _PLACE_BITS != agent & 3 else found & ((1 << _PLACE_BITS) - 1)

    def body(self, connection: apsw.Connection, agent: int, event: StoredEvent, *, replay: bool) -> bytes:
        """Return the event as the message that the agent receives; of a damaged one what is left of its data."""
        if event.is_damaged:
            return event.data
        return Message(
            agentId=self.agent_id(connection, event.producer),
            timestamp=time_text(event.occurred_ms),
            eventType=event.type.decode(),
            data=msgspec.Raw(event.data),
            eventId=event.event_id.decode(),
            subscriberId=self.agent_id(connection, agent),
            sequenceNumber=event.sequence.decode(),
            late=bool(event.late),
            replay=replay,
            traceparent=text_of(event.traceparent),
        ).to_json()

    def peeked(
        self, connection: apsw.Connection, agent: int, place: int, event: StoredEvent, *, replay: bool, **more: Any
    ) -> PeekedMessage:
        """Return the message of an event as `peek` shows it; a damaged one says so in an attribute."""
        attributes = {"Damaged": DAMAGED} if event.is_damaged else {}
        return PeekedMessage(
            message_id=self.message_id(agent, place),
            body=self.body(connection, agent, event, replay=replay),
            attributes=attributes,
            sent_at=moment(event.arrived_us),
            **more,
        )

    def group(self, connection: apsw.Connection, agent: int, group: int) -> str:
        """Return the name of a group: a producer's id, or the agent's own."""
        return self.agent_id(connection, group or agent)
