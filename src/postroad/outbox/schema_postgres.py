"""The tables of an outbox on PostgreSQL.

The index `{outbox}_open` finds the first row of a key and the next key, so that a claim walks from key to key however
large the backlog is. A claim must repeat the expressions of the index: `held`, `coalesce(tenant, '')`, `lane`, `seq`
and `state NOT IN ('SENT', 'SKIPPED')`. No index of new rows holds a lease, an attempt or a due time, so that a claim
rewrites no index entry. Failed rows have no index of their own, since each partial index makes every insert slower.

A claim walks over rows with `held = 0` only. 1 means that the row waits for its `next_attempt` (`{outbox}_waiting`
finds those that are due), 2 that it has failed, or waits behind an earlier row of its key whose `held` is not 0. When
such a row changes its state or is deleted, whoever does it, a trigger releases the rows behind it.

`{gaps}` holds skipped events that the next message of their key has to name, `{parked}` the keys that are parked, and
`{meta}` the policy of the dispatchers, which decides whether a failed row blocks its key, and the error of the target.
`{token}` is the sequence of lease tokens.
"""

from __future__ import annotations

from typing import Final

# The table of the seed, unchanged.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS {outbox} (
  id uuid PRIMARY KEY,
  eventType text NOT NULL,
  payload jsonb NOT NULL,
  state text NOT NULL DEFAULT 'PENDING',
  attempts int NOT NULL DEFAULT 0,
  lastError text,
  next_attempt timestamptz NOT NULL DEFAULT now(),
  createdAt timestamptz NOT NULL DEFAULT now(),
  updatedAt timestamptz NOT NULL DEFAULT now()
);
"""
_COLUMNS: Final = """
ALTER TABLE {outbox}
  ADD COLUMN IF NOT EXISTS seq bigint,
  ADD COLUMN IF NOT EXISTS event_id text COLLATE "C",
  ADD COLUMN IF NOT EXISTS tenant text COLLATE "C",
  ADD COLUMN IF NOT EXISTS lane text COLLATE "C",
  ADD COLUMN IF NOT EXISTS lease_owner text,
  ADD COLUMN IF NOT EXISTS lease_token bigint,
  ADD COLUMN IF NOT EXISTS lease_until timestamptz,
  ADD COLUMN IF NOT EXISTS redrives int NOT NULL DEFAULT 0;
"""
_BESIDE: Final = """
CREATE SEQUENCE IF NOT EXISTS {seq};
CREATE SEQUENCE IF NOT EXISTS {token};
CREATE SEQUENCE IF NOT EXISTS {wake};
CREATE TABLE IF NOT EXISTS {audit} (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now(),
  actor text NOT NULL,
  action text NOT NULL,
  event_id text NOT NULL,
  reason text NOT NULL,
  before text NOT NULL,
  after text NOT NULL
);
CREATE TABLE IF NOT EXISTS {gaps} (
  tenant text COLLATE "C" NOT NULL,
  lane text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  event_id text NOT NULL,
  PRIMARY KEY (tenant, lane, seq)
);
CREATE TABLE IF NOT EXISTS {parked} (
  tenant text COLLATE "C" NOT NULL,
  lane text COLLATE "C" NOT NULL,
  event_id text NOT NULL,
  at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, lane)
);
CREATE TABLE IF NOT EXISTS {meta} (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  version int NOT NULL,
  policy text NOT NULL DEFAULT 'block',
  migrated_at timestamptz NOT NULL DEFAULT now(),
  target_error text,
  target_error_at timestamptz,
  paused_until timestamptz
);
"""
# Reads from the payload what an INSERT in plain SQL left out. It checks each type before it reads, so it never fails.
_READ: Final = """
CREATE OR REPLACE FUNCTION {read}(payload jsonb, OUT event_id text, OUT tenant text, OUT lane text)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  envelope jsonb := payload -> 'envelope';
  key jsonb := payload -> 'key';
BEGIN
  IF jsonb_typeof(envelope -> 'eventId') = 'string' THEN
    event_id := nullif(left(lower(envelope ->> 'eventId'), 200), '');
    IF event_id ~ '^[0-9a-f]{32}$' THEN
      event_id := event_id::uuid::text;
    END IF;
  END IF;
  IF jsonb_typeof(envelope -> 'tenantId') = 'string' THEN
    tenant := nullif(left(envelope ->> 'tenantId', 64), '');
  END IF;
  IF jsonb_typeof(key) = 'object' THEN
    IF key ? 'transferId' THEN
      lane := CASE WHEN jsonb_typeof(key -> 'transferId') = 'string' THEN nullif(key ->> 'transferId', '') END;
    ELSE
      SELECT CASE WHEN bool_and(jsonb_typeof(part.value) = 'string')
             THEN nullif(string_agg(part.value #>> '{}', '/' ORDER BY part.key COLLATE "C"), '') END
        INTO lane FROM jsonb_each(key) AS part;
    END IF;
  END IF;
END $$;
"""
# It locks the slot of the key before it takes the number: within a key, numbers are in the order of the commits. It
# runs with the privileges of its owner, since producers may only insert. All names are qualified, so that it does not
# depend on the search path: setting one for every row would cost more than all the rest.
_FILL: Final = """
CREATE OR REPLACE FUNCTION {fill}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  found record;
BEGIN
  IF NEW.lane IS NULL OR NEW.event_id IS NULL OR pg_catalog.int4eq(pg_catalog.octet_length(NEW.lane), 0) THEN
    IF pg_catalog.int4eq(pg_catalog.octet_length(NEW.lane), 0) THEN
      NEW.lane := NULL;
    END IF;
    found := {read}(NEW.payload);
    NEW.event_id := coalesce(NEW.event_id, found.event_id, NEW.id::pg_catalog.text);
    NEW.tenant := coalesce(NEW.tenant, found.tenant);
    NEW.lane := coalesce(NEW.lane, found.lane, pg_catalog.concat('row:', NEW.id));
  END IF;
  IF pg_catalog.int4gt(pg_catalog.octet_length(NEW.lane), 2000) THEN
    NEW.lane := pg_catalog.concat(
      'h:', pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(NEW.lane, 'UTF8')), 'hex'));
  END IF;
  IF pg_catalog.pg_advisory_xact_lock({space}, pg_catalog.int4and(pg_catalog.hashtext(pg_catalog.textcat(
      pg_catalog.textcat(coalesce(NEW.tenant, ''), ':'), NEW.lane)), 2047)) IS NOT NULL THEN
    NEW.seq := pg_catalog.nextval('{seq}'::pg_catalog.regclass);
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER {table}_fill BEFORE INSERT ON {outbox} FOR EACH ROW EXECUTE FUNCTION {fill}();
"""
# A NOTIFY holds a lock of the whole server until its commit is on disk, so of many commits at once few notify. The
# trigger is deferred, so it decides this at the commit. Only a dispatcher that will look again may keep commits from
# notifying: what the trigger itself writes into {wake} stays even if its commit fails, and would silence others. So a
# dispatcher that was woken writes until when commits need not notify, and looks again after that. Its numbers are even,
# and valid for a minute. If no dispatcher listens, nothing can be missed, and the trigger itself makes sure that of
# many commits within ten milliseconds one notifies.
_TELL: Final = """
CREATE OR REPLACE FUNCTION {tell}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  moment pg_catalog.int8 := pg_catalog.int8(
    pg_catalog.float8mul(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()), 1000));
  written pg_catalog.int8 := coalesce(pg_catalog.pg_sequence_last_value('{wake}'::pg_catalog.regclass), 1);
  gone pg_catalog.int8 := pg_catalog.int8mi(moment, written);
BEGIN
  IF pg_catalog.int8eq(pg_catalog.int8and(written, 1), 0) AND pg_catalog.int8lt(gone, 60000) THEN
    IF pg_catalog.int8ge(gone, 0) OR pg_catalog.int8lt(gone, -100) THEN
      PERFORM pg_catalog.pg_notify('postroad_outbox', '{table}');
    END IF;
  ELSIF pg_catalog.int8ge(gone, 10) OR pg_catalog.int8lt(gone, 0) THEN
    PERFORM pg_catalog.setval('{wake}'::pg_catalog.regclass, pg_catalog.int8or(moment, 1));
    PERFORM pg_catalog.pg_notify('postroad_outbox', '{table}');
  END IF;
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS {table}_tell ON {outbox};
CREATE CONSTRAINT TRIGGER {table}_tell AFTER INSERT ON {outbox} DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION {tell}();
"""
# The seed's rows keep their order. If several have the same event id, the first keeps it, and the others get their
# row's.
_ADOPT: Final = """
WITH postroad_adopted AS (DELETE FROM {outbox} WHERE seq IS NULL RETURNING *)
INSERT INTO {outbox} (id, eventtype, payload, state, attempts, lasterror, next_attempt, createdat, updatedat, event_id)
SELECT id, eventtype, payload, state, attempts, lasterror, next_attempt, createdat, updatedat,
       CASE WHEN row_number() OVER (PARTITION BY ({read}(payload)).event_id ORDER BY createdat, id) > 1
            THEN id::text END
  FROM postroad_adopted ORDER BY createdat, id;
"""
_INDEXES: Final = """
CREATE UNIQUE INDEX IF NOT EXISTS {table}_event_id ON {outbox} (event_id);
CREATE INDEX IF NOT EXISTS {table}_done ON {outbox} (updatedat) WHERE state IN ('SENT', 'SKIPPED');
"""
# The first thousand rows of a key are released. The next row is claimed by itself once they are gone, since it is due
# and nothing is before it, and then releases the next thousand. Another transaction may hold back further rows
# meanwhile, and has locked the row that blocks them: this waits for that lock, and sees them when it looks again. Rows
# are locked in the order of `seq`, as everywhere.
_HOLD: Final = """
ALTER TABLE {outbox} ADD COLUMN IF NOT EXISTS held smallint NOT NULL DEFAULT 0;
DROP INDEX IF EXISTS {schema}.{table}_heads;
CREATE INDEX IF NOT EXISTS {table}_open ON {outbox} (held, coalesce(tenant, ''), lane, seq)
  WHERE state NOT IN ('SENT', 'SKIPPED');
CREATE INDEX IF NOT EXISTS {table}_waiting ON {outbox} (next_attempt) WHERE held = 1 AND state = 'PENDING';
CREATE OR REPLACE FUNCTION {release}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  room int := 1000;
  count int;
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.state NOT IN ('PENDING', 'SENT', 'SKIPPED')
     AND (SELECT policy <> 'skip' FROM {meta}) THEN
    RETURN NULL;
  END IF;
  LOOP
    WITH freed AS MATERIALIZED (
      (SELECT id, seq FROM {outbox} WHERE {behind} AND held = 1 ORDER BY seq LIMIT room)
      UNION ALL
      (SELECT id, seq FROM {outbox} WHERE {behind} AND held = 2 ORDER BY seq LIMIT room)
      ORDER BY seq LIMIT room
    ), locked AS MATERIALIZED (
      SELECT o.id FROM {outbox} AS o JOIN freed ON o.id = freed.id ORDER BY o.seq FOR UPDATE OF o
    )
    UPDATE {outbox} AS o SET held = 0 FROM locked WHERE o.id = locked.id;
    GET DIAGNOSTICS count = ROW_COUNT;
    room := room - count;
    EXIT WHEN count = 0 OR room = 0;
  END LOOP;
  IF room = 0 THEN
    UPDATE {outbox} SET held = 1
     WHERE id = (SELECT id FROM {outbox} WHERE {behind} AND held IN (1, 2) ORDER BY seq LIMIT 1);
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER {table}_release AFTER UPDATE OF state ON {outbox} FOR EACH ROW
  WHEN (OLD.held <> 0 AND OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION {release}();
CREATE OR REPLACE TRIGGER {table}_release_deleted AFTER DELETE ON {outbox} FOR EACH ROW
  WHEN (OLD.held <> 0 AND OLD.state NOT IN ('SENT', 'SKIPPED')) EXECUTE FUNCTION {release}();
""".replace(
    "{behind}",
    "state NOT IN ('SENT', 'SKIPPED') AND state = 'PENDING' AND coalesce(tenant, '') = coalesce(OLD.tenant, '')"
    " AND lane = OLD.lane",
)
# Claims and retries find room on the page of their row; autovacuum runs long before a fifth of the rows is dead.
_UPKEEP: Final = """
ALTER TABLE {outbox} SET (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 1,
  autovacuum_vacuum_cost_limit = 2000,
  autovacuum_analyze_scale_factor = 0.1
);
"""
STEPS: Final = (
    _TABLE + _COLUMNS + _BESIDE + _READ + _FILL + _ADOPT + _INDEXES + _TELL + _UPKEEP,
    _HOLD + _TELL,
)
"""Step n brings a database from version n to n + 1; steps are only ever added."""
