"""What a dispatcher says to SQLite."""

from __future__ import annotations

from typing import Final

WORDS: Final = {
    "head": "coalesce(tenant, ''), lane, seq, state, {free}, redrives",
    "free": "(state = 'PENDING' AND next_attempt <= {now} AND coalesce(lease_until, '') <= {now})",
    "open": "state NOT IN ('SENT', 'SKIPPED')",
    "later": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ? || ' seconds')",
}
"""What statements say again and again; a word may stand for others that come after it."""

# The first row of the next key, in the same tenant and in the next one.
NEXT_LANE: Final = """
SELECT {head} FROM {outbox} WHERE {open} AND coalesce(tenant, '') = ? AND lane > ? ORDER BY lane, seq LIMIT 1
"""
NEXT_TENANT: Final = """
SELECT {head} FROM {outbox} WHERE {open} AND coalesce(tenant, '') > ?
 ORDER BY coalesce(tenant, ''), lane, seq LIMIT 1
"""
FIRST_PENDING: Final = """
SELECT {head} FROM {outbox}
 WHERE {open} AND coalesce(tenant, '') = ? AND lane = ? AND state = 'PENDING' ORDER BY seq LIMIT 1
"""
ANY_LEASED: Final = """
SELECT 1 FROM {outbox}
 WHERE {open} AND coalesce(tenant, '') = ? AND lane = ? AND lease_until > {now} LIMIT 1
"""
ROWS: Final = """
SELECT id, seq, payload, attempts, redrives, {free} FROM {outbox}
 WHERE {open} AND coalesce(tenant, '') = ? AND lane = ? AND seq >= ? ORDER BY seq LIMIT ?
"""
GAP: Final = "SELECT event_id FROM {gaps} WHERE tenant = ? AND lane = ? AND seq < ? ORDER BY seq"
NEXT_NUMBER: Final = "UPDATE {meta} SET last_token = last_token + 1 RETURNING last_token"
LEASE: Final = "UPDATE {outbox} SET lease_owner = ?, lease_token = ?, lease_until = {later} WHERE id = ?"
RENEW: Final = """
UPDATE {outbox} SET lease_until = {later}
 WHERE id = ? AND state = 'PENDING' AND lease_token = ? AND lease_owner = ?
"""
SETTLE: Final = """
UPDATE {outbox} SET
  state = :state,
  attempts = CASE WHEN :counts THEN max(attempts, 0) + 1 ELSE attempts END,
  lasterror = CASE WHEN :state = 'SENT' THEN NULL ELSE coalesce(:error, lasterror) END,
  next_attempt = CASE WHEN :delay IS NULL THEN next_attempt
                      ELSE strftime('%Y-%m-%dT%H:%M:%fZ', 'now', :delay || ' seconds') END,
  updatedat = CASE WHEN :counts OR :error IS NOT NULL THEN {now} ELSE updatedat END,
  lease_owner = NULL, lease_until = NULL
WHERE id = :id AND state = 'PENDING' AND lease_token = :token AND lease_owner = :owner
"""
AGE: Final = "SELECT max((julianday('now') - julianday(createdat)) * 86400, 0) FROM {outbox} WHERE id = ?"
SETTLED_BEFORE: Final = "SELECT 1 FROM {outbox} WHERE id = ? AND lease_token = ? AND lease_owner IS NULL"
NOTE_GAP: Final = """
INSERT INTO {gaps} (tenant, lane, seq, event_id)
SELECT coalesce(tenant, ''), lane, seq, event_id FROM {outbox} WHERE id = ? ON CONFLICT DO NOTHING
"""
CLOSE_GAPS: Final = "DELETE FROM {gaps} WHERE tenant = ? AND lane = ? AND seq < ?"
PARK: Final = """
INSERT INTO {parked} (tenant, lane, event_id)
SELECT coalesce(tenant, ''), lane, event_id FROM {outbox} WHERE id = ? ON CONFLICT DO NOTHING
"""
SET_ASIDE: Final = """
UPDATE {outbox} SET state = 'PARKED', updatedat = {now}, lease_owner = NULL, lease_until = NULL
 WHERE rowid IN (
   SELECT late.rowid FROM {parked} AS p JOIN {outbox} AS late
       ON late.state NOT IN ('SENT', 'SKIPPED') AND coalesce(late.tenant, '') = p.tenant AND late.lane = p.lane
    WHERE late.state = 'PENDING' AND late.seq > (
      SELECT last.seq FROM {outbox} AS last
       WHERE last.state NOT IN ('SENT', 'SKIPPED') AND coalesce(last.tenant, '') = p.tenant AND last.lane = p.lane
         AND last.state <> 'PENDING' ORDER BY last.seq DESC LIMIT 1))
"""
TELL_TARGET: Final = """
UPDATE {meta} SET target_error = :error, target_error_at = CASE WHEN :error IS NOT NULL THEN {now} END,
       paused_until = CASE WHEN :error IS NOT NULL
                           THEN strftime('%Y-%m-%dT%H:%M:%fZ', 'now', :pause || ' seconds') END
 WHERE target_error IS NOT NULL OR :error IS NOT NULL
"""
GAUGES: Final = """
SELECT count(*) FILTER (WHERE state = 'PENDING'),
       coalesce(max((julianday('now') - julianday(min(createdat) FILTER (WHERE state = 'PENDING'))) * 86400, 0), 0),
       count(*) FILTER (WHERE state NOT IN ('PENDING', 'PARKED'))
  FROM {outbox} WHERE state NOT IN ('SENT', 'SKIPPED')
"""
SET_POLICY: Final = "UPDATE {meta} SET policy = ? WHERE policy <> ?"
