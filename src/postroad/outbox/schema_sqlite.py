"""The tables of an outbox on SQLite: as on PostgreSQL, with JSON and UTC timestamps as text.

Times are written by `strftime('%Y-%m-%dT%H:%M:%fZ', 'now')`, so that they sort as texts. `{meta}` also holds the
counters for which PostgreSQL has sequences.
"""

from __future__ import annotations

from typing import Final

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS {outbox} (
  id TEXT NOT NULL PRIMARY KEY,
  eventtype TEXT NOT NULL,
  payload TEXT NOT NULL,
  state TEXT NOT NULL DEFAULT 'PENDING',
  attempts INTEGER NOT NULL DEFAULT 0,
  lasterror TEXT,
  next_attempt TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  createdat TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  updatedat TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
"""
COLUMNS: Final = {
    "seq": "ALTER TABLE {outbox} ADD COLUMN seq INTEGER",
    "event_id": "ALTER TABLE {outbox} ADD COLUMN event_id TEXT",
    "tenant": "ALTER TABLE {outbox} ADD COLUMN tenant TEXT",
    "lane": "ALTER TABLE {outbox} ADD COLUMN lane TEXT",
    "lease_owner": "ALTER TABLE {outbox} ADD COLUMN lease_owner TEXT",
    "lease_token": "ALTER TABLE {outbox} ADD COLUMN lease_token INTEGER",
    "lease_until": "ALTER TABLE {outbox} ADD COLUMN lease_until TEXT",
    "redrives": "ALTER TABLE {outbox} ADD COLUMN redrives INTEGER NOT NULL DEFAULT 0",
}
"""The columns that the seed's table lacks; SQLite has no ADD COLUMN IF NOT EXISTS."""

_BESIDE: Final = """
CREATE TABLE IF NOT EXISTS {audit} (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  event_id TEXT NOT NULL,
  reason TEXT NOT NULL,
  before TEXT NOT NULL,
  after TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS {gaps} (
  tenant TEXT NOT NULL,
  lane TEXT NOT NULL,
  seq INTEGER NOT NULL,
  event_id TEXT NOT NULL,
  PRIMARY KEY (tenant, lane, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {parked} (
  tenant TEXT NOT NULL,
  lane TEXT NOT NULL,
  event_id TEXT NOT NULL,
  at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  PRIMARY KEY (tenant, lane)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {meta} (
  one INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
  version INTEGER NOT NULL,
  policy TEXT NOT NULL DEFAULT 'block',
  migrated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  target_error TEXT,
  target_error_at TEXT,
  paused_until TEXT,
  last_seq INTEGER NOT NULL DEFAULT 0,
  last_token INTEGER NOT NULL DEFAULT 0
);
INSERT INTO {meta} (one, version) VALUES (1, 0) ON CONFLICT DO NOTHING;
"""
# The id of the event, if the payload holds one. A UUID without dashes gets them, so that an event has one id.
_EVENT_ID: Final = """
  (SELECT CASE WHEN length(id) = 32 AND id NOT GLOB '*[^0-9a-f]*' THEN substr(id, 1, 8) || '-' || substr(id, 9, 4)
               || '-' || substr(id, 13, 4) || '-' || substr(id, 17, 4) || '-' || substr(id, 21) ELSE id END
     FROM (SELECT nullif(lower(json_extract(payload, '$.envelope.eventId')), '') AS id
            WHERE json_valid(payload) AND json_type(payload, '$.envelope.eventId') = 'text'))"""
# Times that plain SQL writes in another form, such as datetime('now', '+1 hour'), would not sort correctly. A text that
# is not a time stays as it is.
_DUE: Final = "coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', NEW.next_attempt), NEW.next_attempt)"
# It checks each type before it reads, so that it never fails an insert. SQLite has one writer at a time, so numbers are
# in the order of the commits.
_FILL: Final = """
DROP TRIGGER IF EXISTS {fill};
CREATE TRIGGER {fill} AFTER INSERT ON {outbox} FOR EACH ROW BEGIN
  UPDATE {meta} SET last_seq = last_seq + 1;
  UPDATE {outbox} SET
    seq = (SELECT last_seq FROM {meta}),
    event_id = coalesce(NEW.event_id, {event_id}, NEW.id),
    next_attempt = {due},
    tenant = coalesce(NEW.tenant, (
      SELECT nullif(json_extract(NEW.payload, '$.envelope.tenantId'), '')
       WHERE json_valid(NEW.payload) AND json_type(NEW.payload, '$.envelope.tenantId') = 'text')),
    lane = coalesce(nullif(NEW.lane, ''), (
      SELECT nullif(CASE json_type(NEW.payload, '$.key.transferId')
        WHEN 'text' THEN json_extract(NEW.payload, '$.key.transferId')
      END, '') WHERE json_valid(NEW.payload)), (
      SELECT nullif(CASE WHEN min(part.type = 'text') THEN group_concat(part.value, '/') END, '')
        FROM (SELECT * FROM json_each(CASE WHEN json_valid(NEW.payload) THEN NEW.payload ELSE '{}' END, '$.key')
               ORDER BY key) AS part
       WHERE json_valid(NEW.payload) AND json_type(NEW.payload, '$.key') = 'object'
         AND json_type(NEW.payload, '$.key.transferId') IS NULL), 'row:' || NEW.id)
  WHERE rowid = NEW.rowid;
END;
DROP TRIGGER IF EXISTS {times};
CREATE TRIGGER {times} AFTER UPDATE OF next_attempt ON {outbox} FOR EACH ROW
WHEN NEW.next_attempt NOT LIKE '____-__-__T__:__:__.___Z' AND NEW.next_attempt <> {due} BEGIN
  UPDATE {outbox} SET next_attempt = {due} WHERE rowid = NEW.rowid;
END;
""".replace("{event_id}", _EVENT_ID.replace("payload", "NEW.payload")).replace("{due}", _DUE)
_ADOPT: Final = """
CREATE TEMPORARY TABLE postroad_adopted AS SELECT * FROM {outbox} WHERE seq IS NULL;
DELETE FROM {outbox} WHERE seq IS NULL;
INSERT INTO {outbox} (id, eventtype, payload, state, attempts, lasterror, next_attempt, createdat, updatedat, event_id)
SELECT id, eventtype, payload, state, attempts, lasterror, next_attempt, createdat, updatedat,
       CASE WHEN row_number() OVER (PARTITION BY {event_id} ORDER BY createdat, id) > 1 THEN id END
  FROM postroad_adopted ORDER BY createdat, id;
DROP TABLE postroad_adopted;
""".replace("{event_id}", _EVENT_ID)
_INDEXES: Final = """
CREATE UNIQUE INDEX IF NOT EXISTS {table}_event_id ON {outbox} (event_id);
CREATE INDEX IF NOT EXISTS {table}_failed ON {outbox} (seq)
  WHERE state NOT IN ('PENDING', 'PARKED', 'SENT', 'SKIPPED');
CREATE INDEX IF NOT EXISTS {table}_done ON {outbox} (updatedat) WHERE state IN ('SENT', 'SKIPPED');
"""
# See schema_postgres.py.
_HOLD: Final = """
DROP INDEX IF EXISTS {table}_heads;
CREATE INDEX IF NOT EXISTS {table}_open ON {outbox} (held, coalesce(tenant, ''), lane, seq)
  WHERE state NOT IN ('SENT', 'SKIPPED');
CREATE INDEX IF NOT EXISTS {table}_waiting ON {outbox} (next_attempt) WHERE held = 1 AND state = 'PENDING';
DROP TRIGGER IF EXISTS {release};
CREATE TRIGGER {release} AFTER UPDATE OF state ON {outbox} FOR EACH ROW
WHEN OLD.held <> 0 AND OLD.state <> NEW.state
 AND (NEW.state IN ('PENDING', 'SENT', 'SKIPPED') OR (SELECT policy = 'skip' FROM {meta})) BEGIN
  {free}
END;
DROP TRIGGER IF EXISTS {table}_release_deleted;
CREATE TRIGGER {table}_release_deleted AFTER DELETE ON {outbox} FOR EACH ROW
WHEN OLD.held <> 0 AND OLD.state NOT IN ('SENT', 'SKIPPED') BEGIN
  {free}
END;
""".replace(
    "{free}",
    """UPDATE {outbox} SET held = 0 WHERE rowid IN (
    SELECT rowid FROM {outbox} WHERE {behind} ORDER BY seq LIMIT 1000);
  UPDATE {outbox} SET held = 1 WHERE rowid = (SELECT rowid FROM {outbox} WHERE {behind} ORDER BY seq LIMIT 1);""",
).replace(
    "{behind}",
    "state NOT IN ('SENT', 'SKIPPED') AND held IN (1, 2) AND coalesce(tenant, '') = coalesce(OLD.tenant, '')"
    " AND lane = OLD.lane AND state = 'PENDING'",
)
_HELD: Final = {"held": "ALTER TABLE {outbox} ADD COLUMN held INTEGER NOT NULL DEFAULT 0"}
STEPS: Final = ((_TABLE, COLUMNS, _BESIDE + _FILL + _ADOPT + _INDEXES), ("", _HELD, _HOLD))
"""Step n brings a file from version n to n + 1: statements, columns to add where they are missing, statements."""
