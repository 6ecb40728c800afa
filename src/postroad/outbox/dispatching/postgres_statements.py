"""The statements of a dispatcher on PostgreSQL.

A claim turns synchronous commits off for itself, since it need not wait for the disk: a row whose lease is lost in a
crash is only claimed again, under another token.
"""

from __future__ import annotations

from typing import Final

PHRASES: Final = {
    "redriven_too_soon": """(%(skip)s AND o.redrives > 0 AND EXISTS (
      SELECT FROM {outbox} b WHERE {open_b} AND b.held IN (0, 1, 2) AND coalesce(b.tenant, '') = coalesce(o.tenant, '')
         AND b.lane = o.lane AND b.lease_until > now()))""",
    "columns": "coalesce(o.tenant, '') AS tenant, o.lane, o.seq, o.id, o.state, o.next_attempt, o.lease_until, o.held,"
    " o.redrives, o.createdat, o.updatedat",
    "free": "{pending} AND {due} AND coalesce(o.lease_until, '-infinity') <= now()",
    # A row that was due when it was written is due, even if the clock was set back since.
    "due": "o.next_attempt <= greatest(now(), o.createdat, o.updatedat)",
    "pending": "o.state || '' = 'PENDING'",
    "open_b": "b.state NOT IN ('SENT', 'SKIPPED') AND (NOT %(skip)s OR b.state = 'PENDING')",
    "open": "o.state NOT IN ('SENT', 'SKIPPED')",
}
"""Parts of several statements; a phrase may use those that come after it.

Where rows are found by their ids, the state is compared in a way that no index supports: with statistics taken when
there was no backlog, the planner would walk the index of all open rows instead.
"""

# The claim walks from key to key over rows that are not held, and stops as soon as it has enough. Rows whose retry is
# due are found separately, and the two kinds take turns. Only the first row of a key is locked, and whether it is free
# is checked again after that. Once all keys were visited (`deep`), rows behind the first are claimed too while they are
# free and consecutive, as many as fill the batch; a row that was tried before is claimed alone. Where keys go on
# without their failed rows (`skip`), a redriven row waits until no later row is leased. The rows that were found stuck
# are returned in the last row, for HOLD.
CLAIM: Final = """
WITH RECURSIVE head AS (
  SELECT %(tenant)s::text COLLATE "C" AS tenant, %(lane)s::text COLLATE "C" AS lane, 0::bigint AS seq, NULL::uuid AS id,
         NULL::uuid AS held_by, false AS due, false AS stuck, 0 AS found
  UNION ALL
  SELECT looked.*, head.found + looked.due::int FROM head CROSS JOIN LATERAL (
    SELECT o.tenant, o.lane, o.seq, o.id, before.id AS held_by,
           {free} AND before.id IS NULL AND NOT {redriven_too_soon} AS due,
           coalesce(o.lease_until, '-infinity') <= now()
           AND (o.state <> 'PENDING' OR NOT {due} OR before.id IS NOT NULL) AS stuck
      FROM (SELECT {columns} FROM {outbox} o
             WHERE {open} AND o.held = 0 AND (coalesce(o.tenant, ''), o.lane) > (head.tenant, head.lane)
             ORDER BY coalesce(o.tenant, ''), o.lane, o.seq LIMIT 1) AS o
      LEFT JOIN LATERAL (
        SELECT b.id FROM {outbox} b WHERE {open_b} AND b.held IN (1, 2) AND coalesce(b.tenant, '') = o.tenant
           AND b.lane = o.lane AND b.seq < o.seq LIMIT 1) AS before ON true) AS looked
   WHERE head.found < %(limit)s + %(leaving)s
), due AS MATERIALIZED (
  SELECT * FROM (
    (SELECT o.tenant, o.lane, o.seq, o.id, o.held, row_number() OVER (ORDER BY o.next_attempt) AS turn FROM (
       SELECT {columns} FROM {outbox} o
        WHERE o.held = 1 AND o.state = 'PENDING' AND o.next_attempt <= now()
          AND coalesce(o.lease_until, '-infinity') <= now() AND NOT {redriven_too_soon} AND NOT EXISTS (
            SELECT FROM {outbox} b WHERE {open_b} AND b.held IN (0, 1, 2)
               AND coalesce(b.tenant, '') = coalesce(o.tenant, '') AND b.lane = o.lane AND b.seq < o.seq)
        ORDER BY o.next_attempt LIMIT %(limit)s) AS o)
    UNION ALL
    (SELECT tenant, lane, seq, id, 0, row_number() OVER () FROM head WHERE due OFFSET %(leaving)s)
  ) AS both_kinds ORDER BY turn, random() LIMIT %(limit)s
), locked AS MATERIALIZED (
  SELECT due.* FROM due JOIN {outbox} o ON o.id = due.id WHERE {free} FOR UPDATE OF o SKIP LOCKED
), taken AS MATERIALIZED (
  SELECT id, 1 AS place, ARRAY(
           SELECT g.event_id FROM {gaps} g
            WHERE g.tenant = locked.tenant AND g.lane = locked.lane AND g.seq < locked.seq ORDER BY g.seq) AS gap
    FROM locked
  UNION ALL
  SELECT near.id, near.place, NULL FROM locked CROSS JOIN LATERAL (
    SELECT o.id, 1 + row_number() OVER by_seq AS place, bool_and({free}) OVER by_seq AS free
      FROM (SELECT {columns} FROM {outbox} o
             WHERE {open} AND o.held = 0 AND coalesce(o.tenant, '') = locked.tenant AND o.lane = locked.lane
               AND o.seq > locked.seq AND NOT EXISTS (
                 SELECT FROM {outbox} b
                  WHERE b.state NOT IN ('SENT', 'SKIPPED') AND b.held IN (1, 2)
                    AND coalesce(b.tenant, '') = locked.tenant AND b.lane = locked.lane
                    AND b.seq > locked.seq AND b.seq < o.seq)
             ORDER BY o.seq
             LIMIT (SELECT CASE WHEN %(deep)s THEN greatest(%(limit)s / count(*), 1) - 1 ELSE 0 END FROM locked)) AS o
    WINDOW by_seq AS (ORDER BY o.seq)) AS near
   WHERE near.free AND locked.held = 0
), claimed AS (
  UPDATE {outbox} o
     SET lease_owner = %(owner)s, lease_token = (SELECT nextval('{token}')),
         lease_until = now() + make_interval(secs => %(lease)s)
    FROM taken
   WHERE o.id = taken.id AND {free} AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
  RETURNING coalesce(o.tenant, ''), o.lane, o.seq, taken.place, o.id::text, o.payload::text, o.attempts, o.redrives,
            o.lease_token, taken.gap, o.held = 1
)
SELECT claimed.*, NULL::uuid[], NULL::uuid[] FROM claimed
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, array_agg(stuck.id), array_agg(stuck.held_by)
  FROM (SELECT id, held_by FROM head WHERE stuck LIMIT 10000) AS stuck HAVING count(*) > 0
"""
# A transaction that holds a row back has locked the row that blocks it, and has seen that it still does. A transaction
# that unblocks the key releases the rows behind afterwards. So no row is held that nothing will release. Whether a
# failed row blocks its key depends on the policy in the database, which cannot change meanwhile. The blocking row is
# written, not only locked, so that a release whose transaction cannot see the held rows fails instead. In a parked key,
# the rows behind are parked too.
HOLD: Final = """
WITH settings AS MATERIALIZED (
  SELECT policy FROM {meta} FOR SHARE
), sure AS MATERIALIZED (
  SELECT given.id, given.held_by, o.state <> 'PENDING' AS given_up
    FROM settings CROSS JOIN unnest(%(ids)s::uuid[], %(held_by)s::uuid[]) AS given(id, held_by)
    JOIN {outbox} o ON o.id = coalesce(given.held_by, given.id)
   WHERE o.state || '' NOT IN ('SENT', 'SKIPPED')
     AND CASE WHEN given.held_by IS NULL THEN o.state <> 'PENDING' OR NOT {due}
              ELSE o.held <> 0 AND (o.state = 'PENDING' OR settings.policy <> 'skip') END
     FOR UPDATE OF o SKIP LOCKED
), touched AS (
  UPDATE {outbox} o SET held = o.held FROM sure WHERE o.id = sure.held_by
), chosen AS MATERIALIZED (
  SELECT id, CASE WHEN given_up THEN 2 ELSE 1 END AS held, false AS parked FROM sure WHERE held_by IS NULL
  UNION ALL
  SELECT behind.id, 2, sure.given_up AND EXISTS (
           SELECT FROM {parked} p WHERE p.tenant = coalesce(head.tenant, '') AND p.lane = head.lane)
    FROM sure JOIN {outbox} head ON head.id = sure.id CROSS JOIN LATERAL (
      SELECT o.id FROM {outbox} o
       WHERE {open} AND o.held = 0 AND coalesce(o.tenant, '') = coalesce(head.tenant, '') AND o.lane = head.lane
         AND o.seq >= head.seq ORDER BY o.seq LIMIT 100) AS behind
   WHERE sure.held_by IS NOT NULL
), locked AS MATERIALIZED (
  SELECT chosen.* FROM chosen JOIN {outbox} o ON o.id = chosen.id
   WHERE o.held = 0 AND coalesce(o.lease_until, '-infinity') <= now() FOR UPDATE OF o SKIP LOCKED
)
UPDATE {outbox} o
   SET held = locked.held, state = CASE WHEN locked.parked AND {pending} THEN 'PARKED' ELSE o.state END,
       updatedat = CASE WHEN locked.parked THEN now() ELSE o.updatedat END
  FROM locked
 WHERE o.id = locked.id AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
"""
RENEW: Final = """
UPDATE {outbox} o SET lease_until = now() + make_interval(secs => %(lease)s)
  FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS mine(id, token)
 WHERE o.id = mine.id AND {pending} AND o.lease_token = mine.token AND o.lease_owner = %(owner)s
RETURNING o.id::text, o.lease_token
"""
# A row that was written in a time that the clock repeats waits for its whole pause once more, and not for that time.
RESTART_PAUSES: Final = """
WITH locked AS MATERIALIZED (
  SELECT o.id FROM {outbox} o
   WHERE o.held = 1 AND o.state = 'PENDING' AND o.next_attempt > now() AND o.next_attempt < 'infinity'
     AND o.updatedat > now() + interval '1 second' AND o.lasterror IS NOT NULL FOR UPDATE OF o SKIP LOCKED
)
UPDATE {outbox} o SET next_attempt = now() + (o.next_attempt - o.updatedat), updatedat = now()
  FROM locked WHERE o.id = locked.id
"""
SETTLE: Final = """
UPDATE {outbox} o
   SET state = mine.state,
       attempts = CASE WHEN mine.counts THEN greatest(o.attempts, 0) + 1 ELSE o.attempts END,
       lasterror = CASE WHEN mine.state = 'SENT' THEN NULL ELSE coalesce(mine.error, o.lasterror) END,
       next_attempt = CASE WHEN mine.delay IS NULL THEN o.next_attempt
                           ELSE now() + make_interval(secs => mine.delay) END,
       updatedat = CASE WHEN mine.counts OR mine.error IS NOT NULL THEN now() ELSE o.updatedat END,
       held = CASE WHEN mine.state = 'FAILED' THEN 2 WHEN mine.delay IS NOT NULL THEN 1 ELSE o.held END,
       lease_owner = NULL, lease_until = NULL
  FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(states)s::text[], %(counts)s::boolean[], %(errors)s::text[],
              %(delays)s::float8[]) AS mine(id, token, state, counts, error, delay)
 WHERE o.id = mine.id AND {pending} AND o.lease_token = mine.token AND o.lease_owner = %(owner)s
RETURNING o.id::text, o.lease_token, extract(epoch FROM now() - o.createdat)::float8
"""
# A settlement whose answer was lost may have been written: then the row still has our token, is not leased, and is in
# the state that we wanted.
SETTLED_BEFORE: Final = """
SELECT o.id::text, o.lease_token, extract(epoch FROM now() - o.createdat)::float8
  FROM {outbox} o JOIN unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(states)s::text[]) AS mine(id, token, state)
    ON o.id = mine.id
 WHERE o.lease_token = mine.token AND o.lease_owner IS NULL AND o.state = mine.state
"""
# Claims do not wait for the disk, so a crash may lose tokens that were used, and the sequence would return them again.
# Every connection therefore starts with tokens far beyond any that may have been lost, and this is on disk before the
# first of them is used. The lock lets one connection at a time do this.
SKIP_TOKENS: Final = """
WITH alone AS MATERIALIZED (SELECT FROM {meta} FOR UPDATE)
SELECT setval('{token}', nextval('{token}') + 4294967296) FROM alone
 WHERE set_config('synchronous_commit', 'on', true) IS NOT NULL
"""
NOTE_GAPS: Final = """
INSERT INTO {gaps} (tenant, lane, seq, event_id)
SELECT coalesce(tenant, ''), lane, seq, event_id FROM {outbox} WHERE id = ANY (%(ids)s::uuid[]) ON CONFLICT DO NOTHING
"""
CLOSE_GAPS: Final = """
DELETE FROM {gaps} g USING {outbox} o
 WHERE o.id = ANY (%(ids)s::uuid[]) AND g.tenant = coalesce(o.tenant, '') AND g.lane = o.lane AND g.seq < o.seq
"""
PARK: Final = """
INSERT INTO {parked} (tenant, lane, event_id)
SELECT coalesce(tenant, ''), lane, event_id FROM {outbox} WHERE id = ANY (%(ids)s::uuid[]) ON CONFLICT DO NOTHING
"""
SET_ASIDE: Final = """
UPDATE {outbox} o SET state = 'PARKED', held = 2, updatedat = now(), lease_owner = NULL, lease_until = NULL
  FROM {outbox} failed
 WHERE failed.id = ANY (%(ids)s::uuid[]) AND {open} AND o.held IN (0, 1, 2) AND o.state = 'PENDING'
   AND coalesce(o.tenant, '') = coalesce(failed.tenant, '') AND o.lane = failed.lane AND o.seq > failed.seq
"""
SET_TARGET_ERROR: Final = """
UPDATE {meta} SET target_error = %(error)s, target_error_at = CASE WHEN %(error)s::text IS NOT NULL THEN now() END,
       paused_until = CASE WHEN %(error)s::text IS NOT NULL THEN now() + make_interval(secs => %(pause)s) END
 WHERE target_error IS DISTINCT FROM %(error)s OR %(error)s::text IS NOT NULL
"""
GAUGES: Final = """
SELECT count(*) FILTER (WHERE state = 'PENDING'),
       coalesce(extract(epoch FROM now() - min(createdat) FILTER (WHERE state = 'PENDING')), 0)::float8,
       count(*) FILTER (WHERE state NOT IN ('PENDING', 'PARKED'))
  FROM {outbox} WHERE state NOT IN ('SENT', 'SKIPPED')
"""
SERVER: Final = """
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
       current_setting('default_transaction_isolation')
"""
SET_POLICY: Final = "UPDATE {meta} SET policy = %(policy)s WHERE policy <> %(policy)s"
# Which rows a failed row holds back depends on the policy, so all are released when it changes. Rows are locked in the
# order in which settlements lock them.
RELEASE_ALL: Final = """
WITH locked AS MATERIALIZED (
  SELECT o.id FROM {outbox} o WHERE {open} AND o.held IN (1, 2) AND o.state = 'PENDING'
   ORDER BY coalesce(o.tenant, ''), o.lane, o.seq FOR UPDATE
)
UPDATE {outbox} o SET held = 0 FROM locked WHERE o.id = locked.id
"""
