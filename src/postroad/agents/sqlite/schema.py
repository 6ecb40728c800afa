"""The tables of agents in the embedded file.

An event is stored once, under its place. A subscriber's row is its lane and that place, so that a range of rows is one
lane in the order of release, without a second index. Rows stay after they were acked, for replays and to recognise
what is published again. Behind a lane's head only what is not settled is written down: rows that are with a
receiver or came back (`agent_lease`), and rows that wait for their group (`agent_aside`).
"""

from __future__ import annotations

from typing import Final

from postroad.engine import Schema, Transaction

HELD: Final = 1 << 60
"""Places from here on are of events that wait for the end of the hold-back window."""
NEVER: Final = 1 << 62
"""A time of the monotonic clock that does not come."""
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

SCHEMA: Final = Schema("agents", (_TABLES + _VIEWS,))

_AFTER_REBOOT: Final = (
    "UPDATE agent_lease SET held = 0, visible_us = max(0, ?1 + coalesce(due_wall_us, 0) - ?2)",
    """
    UPDATE agent_group SET visible_us = iif(visible_us = ?3, ?3, coalesce((
        SELECT max(lease.visible_us) FROM agent_lease AS lease
        WHERE lease.lane = agent_group.lane AND lease.grp = agent_group.grp), 0))
    """,
)


def after_reboot(tx: Transaction, *, monotonic_us: int, now_us: int) -> None:
    """End all leases, whose clock is gone, and reckon releases by the wall clock."""
    tx.connection.execute(_AFTER_REBOOT[0], (monotonic_us, now_us))
    tx.connection.execute(_AFTER_REBOOT[1], (monotonic_us, now_us, NEVER))
