"""What a dispatcher says to PostgreSQL. A claim need not wait for the disk (a lease that a crash forgets is only
claimed again), so it turns that off for itself."""

from __future__ import annotations

from typing import Final

WORDS: Final = {
    "columns": "coalesce(o.tenant, '') AS tenant, o.lane, o.seq, o.id, o.state, o.next_attempt, o.lease_until",
    "free": "{pending} AND o.next_attempt <= now() AND coalesce(o.lease_until, '-infinity') <= now()",
    "pending": "o.state || '' = 'PENDING'",
    "open": "o.state NOT IN ('SENT', 'SKIPPED')",
}
"""What statements say again and again; a word may stand for others that come after it.

Of rows that are known by their ids the state is asked in a way that no index answers: statistics of a moment without
backlog would make the planner walk the index of all open rows instead.
"""

# Walks from key to key along the index of heads and stops as soon as it has enough. Only heads are locked, and what
# makes them free is looked at again once they are. Rows behind a head are taken while they are free and follow each
# other, so many that together they fill the batch, once all keys were looked at (`deep`). Where keys go on without
# what failed (`skip`), the head is the first PENDING row, and one that was redriven waits until nobody holds a later
# one.
CLAIM: Final = """
WITH RECURSIVE head AS (
  (SELECT {columns}, o.redrives FROM {outbox} o
    WHERE {open} AND (coalesce(o.tenant, ''), o.lane) > (%(tenant)s, %(lane)s)
    ORDER BY coalesce(o.tenant, ''), o.lane, o.seq LIMIT 1)
  UNION ALL
  SELECT behind.* FROM head CROSS JOIN LATERAL (
    SELECT {columns}, o.redrives FROM {outbox} o
     WHERE {open} AND (coalesce(o.tenant, ''), o.lane) > (head.tenant, head.lane)
     ORDER BY coalesce(o.tenant, ''), o.lane, o.seq LIMIT 1) AS behind
), due AS MATERIALIZED (
  SELECT first.* FROM head CROSS JOIN LATERAL (
    SELECT o.tenant, o.lane, o.seq, o.id FROM (SELECT head.*) AS o WHERE {free}
    UNION ALL
    SELECT o.tenant, o.lane, o.seq, o.id FROM (
      SELECT {columns} FROM {outbox} o
       WHERE %(skip)s AND head.state <> 'PENDING' AND {open} AND o.state = 'PENDING'
         AND coalesce(o.tenant, '') = head.tenant AND o.lane = head.lane
       ORDER BY o.seq LIMIT 1) AS o WHERE {free}) AS first
   WHERE NOT (%(skip)s AND head.redrives > 0 AND EXISTS (
     SELECT FROM {outbox} o
      WHERE {open} AND coalesce(o.tenant, '') = head.tenant AND o.lane = head.lane AND o.lease_until > now()))
   LIMIT %(limit)s OFFSET %(leaving)s
), locked AS MATERIALIZED (
  SELECT due.* FROM due JOIN {outbox} o ON o.id = due.id WHERE {free} FOR UPDATE OF o SKIP LOCKED
), taken AS MATERIALIZED (
  SELECT near.id, near.place, CASE WHEN near.place = 1 THEN ARRAY(
           SELECT g.event_id FROM {gaps} g
            WHERE g.tenant = locked.tenant AND g.lane = locked.lane AND g.seq < locked.seq ORDER BY g.seq) END AS gap
    FROM locked CROSS JOIN LATERAL (
      SELECT o.id, row_number() OVER by_seq AS place, bool_and({free}) OVER by_seq AS free
        FROM (SELECT {columns} FROM {outbox} o
               WHERE {open} AND coalesce(o.tenant, '') = locked.tenant AND o.lane = locked.lane
                 AND o.seq >= locked.seq
               ORDER BY o.seq
               LIMIT (SELECT CASE WHEN %(deep)s THEN greatest(%(limit)s / count(*), 1) ELSE 1 END FROM locked)) AS o
      WINDOW by_seq AS (ORDER BY o.seq)) AS near
   WHERE near.free
)
UPDATE {outbox} o
   SET lease_owner = %(owner)s, lease_token = (SELECT nextval('{token}')),
       lease_until = now() + make_interval(secs => %(lease)s)
  FROM taken
 WHERE o.id = taken.id AND {free} AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
RETURNING coalesce(o.tenant, ''), o.lane, o.seq, taken.place, o.id::text, o.payload::text, o.attempts, o.redrives,
          o.lease_token, taken.gap
"""
RENEW: Final = """
UPDATE {outbox} o SET lease_until = now() + make_interval(secs => %(lease)s)
  FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS mine(id, token)
 WHERE o.id = mine.id AND {pending} AND o.lease_token = mine.token AND o.lease_owner = %(owner)s
RETURNING o.id::text
"""
SETTLE: Final = """
UPDATE {outbox} o
   SET state = mine.state,
       attempts = CASE WHEN mine.counts THEN greatest(o.attempts, 0) + 1 ELSE o.attempts END,
       lasterror = CASE WHEN mine.state = 'SENT' THEN NULL ELSE coalesce(mine.error, o.lasterror) END,
       next_attempt = CASE WHEN mine.delay IS NULL THEN o.next_attempt
                           ELSE now() + make_interval(secs => mine.delay) END,
       updatedat = CASE WHEN mine.counts OR mine.error IS NOT NULL THEN now() ELSE o.updatedat END,
       lease_owner = NULL, lease_until = NULL
  FROM unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(states)s::text[], %(counts)s::boolean[], %(errors)s::text[],
              %(delays)s::float8[]) AS mine(id, token, state, counts, error, delay)
 WHERE o.id = mine.id AND {pending} AND o.lease_token = mine.token AND o.lease_owner = %(owner)s
RETURNING o.id::text, extract(epoch FROM now() - o.createdat)::float8
"""
# A settlement whose answer was lost may have been written: then the token is still ours and nobody holds the row.
SETTLED_BEFORE: Final = """
SELECT o.id::text, extract(epoch FROM now() - o.createdat)::float8
  FROM {outbox} o JOIN unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS mine(id, token) ON o.id = mine.id
 WHERE o.lease_token = mine.token AND o.lease_owner IS NULL
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
# Behind the last row of a parked key that is set aside, or has failed, there are only rows that came later.
SET_ASIDE: Final = """
UPDATE {outbox} o SET state = 'PARKED', updatedat = now(), lease_owner = NULL, lease_until = NULL
  FROM {parked} p
 WHERE o.state NOT IN ('SENT', 'SKIPPED') AND coalesce(o.tenant, '') = p.tenant AND o.lane = p.lane
   AND o.state = 'PENDING' AND o.seq > (
     SELECT last.seq FROM {outbox} last
      WHERE last.state NOT IN ('SENT', 'SKIPPED') AND coalesce(last.tenant, '') = p.tenant AND last.lane = p.lane
        AND last.state <> 'PENDING' ORDER BY last.seq DESC LIMIT 1)
"""
TELL_TARGET: Final = """
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
READ_ONLY: Final = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"
SET_POLICY: Final = "UPDATE {meta} SET policy = %(policy)s WHERE policy <> %(policy)s"
