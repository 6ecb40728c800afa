"""The tables of the embedded queues.

A message's id is `queue << 40 | n`: a range of ids is one queue in the order of sending, without an index. A message
that was never received and is not delayed has no lease; `tally.head` is the first id that no receiver has read.
So a send writes one row, a receive adds one small row and never rewrites the body, an ack deletes both.
"""

from __future__ import annotations

from typing import Final

from postroad.engine import Schema, Transaction

ID_BITS: Final = 40

SCHEMA: Final = Schema(
    "queues",
    (
        """
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL
) STRICT;

CREATE TABLE tally (              -- what changes with every message; one row for each queue
    queue INTEGER PRIMARY KEY,
    next INTEGER NOT NULL,        -- the id of the next message
    head INTEGER NOT NULL,        -- the first id that no receiver has looked at
    size INTEGER NOT NULL DEFAULT 0,
    last_us INTEGER NOT NULL DEFAULT 0,   -- stored times never decrease
    seen_us INTEGER NOT NULL,     -- when its owner last showed itself
    lives_us INTEGER,             -- how long it lives without its owner
    sent INTEGER NOT NULL DEFAULT 0,
    received INTEGER NOT NULL DEFAULT 0,
    acked INTEGER NOT NULL DEFAULT 0,
    retried INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    redriven INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX tally_by_life ON tally (seen_us) WHERE lives_us IS NOT NULL;

CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    sent_us INTEGER NOT NULL,     -- wall clock
    grp INTEGER,                  -- FIFO: its row in grp
    due_us INTEGER,               -- FIFO with a delay: monotonic clock
    origin INTEGER,               -- the id it was first sent under, when it was moved
    group_name TEXT,
    body BLOB NOT NULL,
    attributes TEXT,
    checksum INTEGER NOT NULL
) STRICT;
CREATE INDEX message_by_group ON message (grp, id) WHERE grp IS NOT NULL;
CREATE INDEX message_by_origin ON message (origin) WHERE origin IS NOT NULL;
CREATE INDEX moved_by_age ON message (id >> 40, sent_us) WHERE origin IS NOT NULL;

CREATE TABLE lease (              -- messages that are with a receiver, were released, or wait for their time
    id INTEGER PRIMARY KEY,       -- of the message
    queue INTEGER NOT NULL,
    grp INTEGER,
    visible_us INTEGER NOT NULL,  -- monotonic clock
    held INTEGER NOT NULL,        -- 1: the newest receipt is valid
    receives INTEGER NOT NULL,
    first_us INTEGER,             -- first received, wall clock
    leased_us INTEGER,            -- last received, monotonic clock
    due_wall_us INTEGER,          -- delayed until, wall clock: after a reboot it is all we know
    error TEXT,
    sent_us INTEGER NOT NULL,
    origin INTEGER
) STRICT;
CREATE INDEX lease_by_time ON lease (queue, visible_us, held);
CREATE INDEX lease_by_group ON lease (grp, visible_us) WHERE grp IS NOT NULL;

CREATE TABLE grp (                -- FIFO groups that hold messages
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    visible_us INTEGER NOT NULL,  -- locked or delayed until, monotonic clock
    UNIQUE (queue, name)
) STRICT;
CREATE INDEX grp_by_time ON grp (queue, visible_us);

CREATE TABLE dedup (
    n INTEGER PRIMARY KEY,        -- in the order of sending, so that the oldest are found first
    scope INTEGER NOT NULL,       -- a queue's id, or a topic's, negated
    grp TEXT NOT NULL,
    id TEXT NOT NULL,
    message INTEGER NOT NULL,
    until_us INTEGER NOT NULL,    -- monotonic clock
    until_wall_us INTEGER NOT NULL,
    UNIQUE (scope, grp, id)
) STRICT;

CREATE TABLE trail (              -- the ring of settled messages; one row for all of a commit
    n INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    kind TEXT NOT NULL,
    entries BLOB NOT NULL,
    detail TEXT
) STRICT;

CREATE TABLE abandoned (queues INTEGER NOT NULL, messages INTEGER NOT NULL) STRICT;
INSERT INTO abandoned VALUES (0, 0);
""",
        # Events by their place among the entries, as "0:id 3:id".
        "ALTER TABLE trail ADD COLUMN events TEXT;",
        # What had happened on queues that were deleted since, so that totals never decrease.
        """
CREATE TABLE deleted (
    sent INTEGER NOT NULL,
    received INTEGER NOT NULL,
    acked INTEGER NOT NULL,
    retried INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    redriven INTEGER NOT NULL,
    expired INTEGER NOT NULL
) STRICT;
INSERT INTO deleted VALUES (0, 0, 0, 0, 0, 0, 0);
""",
        # Where messages that are not settled failed last; only the newest are kept. And the sources of dead letters.
        """
CREATE TABLE traceback (
    n INTEGER PRIMARY KEY,
    message INTEGER NOT NULL UNIQUE,   -- the id it was first sent under
    lines TEXT NOT NULL
) STRICT;
CREATE INDEX queue_by_dead_letter ON queue (CASE WHEN json_valid(spec) THEN json_extract(spec, '$.dead_letter') END);
""",
        # Receives that were taken back: they do not count, but each has its own receipt.
        "ALTER TABLE lease ADD COLUMN undone INTEGER NOT NULL DEFAULT 0;",
    ),
)

_AFTER_REBOOT: Final = (
    "UPDATE lease SET held = 0, visible_us = 0 WHERE due_wall_us IS NULL",
    "UPDATE lease SET visible_us = max(0, :monotonic + due_wall_us - :wall) WHERE due_wall_us IS NOT NULL",
    """
UPDATE message SET due_us = max(0, :monotonic + sent_us + (
    SELECT cast(json_extract(spec, '$.delay') * 1000000 AS INTEGER) FROM queue WHERE queue.id = message.id >> 40
) - :wall) WHERE due_us IS NOT NULL
""",
    "UPDATE dedup SET until_us = :monotonic + until_wall_us - :wall",
    """
UPDATE grp SET visible_us = coalesce((SELECT due_us FROM message WHERE message.grp = grp.id ORDER BY id LIMIT 1), 0)
""",
    "UPDATE tally SET seen_us = :monotonic",
)


def after_reboot(tx: Transaction, *, monotonic_us: int, now_us: int) -> None:
    """End all leases, whose clock has restarted, and compute delays from the wall clock."""
    for statement in _AFTER_REBOOT:
        tx.connection.execute(statement, {"monotonic": monotonic_us, "wall": now_us})
