"""What a dispatcher says to SQLite."""

from __future__ import annotations

from typing import Final

WORDS: Final = {
    "head": "coalesce(tenant, ''), lane, seq, {free}, coalesce(lease_until, '') > {now}, redrives",
    "free": "(state = 'PENDING' AND next_attempt <= {now} AND coalesce(lease_until, '') <= {now})",
    "open": "state NOT IN ('SENT', 'SKIPPED')",
    "later": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ? || ' seconds')",
}
"""What statements say again and again; a word may stand for others that come after it."""

# The first row of the next key that nothing holds, in the same tenant and in the next one.
NEXT_LANE: Final = """
SELECT {head} FROM {outbox} WHERE {open} AND held = 0 AND coalesce(tenant, '') = ? AND lane > ?
 ORDER BY lane, seq LIMIT 1
"""
NEXT_TENANT: Final = """
SELECT {head} FROM {outbox} WHERE {open} AND held = 0 AND coalesce(tenant, '') > ?
 ORDER BY coalesce(tenant, ''), lane, seq LIMIT 1
"""
# Rows that waited for their time, which has come.
WAITED: Final = """
SELECT {head} FROM {outbox} WHERE held = 1 AND state = 'PENDING' AND next_attempt <= {now} AND {free}
 ORDER BY next_attempt
"""
# What an earlier row of the key is that stands in the way: those in `held` of the given values, or all.
BEFORE: Final = """
SELECT state FROM {outbox}
 WHERE {open} AND held IN ({among}) AND coalesce(tenant, '') = ? AND lane = ? AND seq < ?
   AND (NOT ? OR state = 'PENDING') LIMIT 1
"""
ANY_LEASED: Final = """
SELECT 1 FROM {outbox}
 WHERE {open} AND held IN (0, 1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND lease_until > {now} LIMIT 1
"""
ROWS: Final = """
SELECT id, seq, payload, attempts, redrives, {free} FROM {outbox}
 WHERE {open} AND held IN (0, 1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND seq >= ? ORDER BY seq LIMIT ?
"""
HOLD: Final = """
UPDATE {outbox} SET held = CASE WHEN state = 'PENDING' THEN 1 ELSE 2 END
 WHERE {open} AND held = 0 AND coalesce(tenant, '') = ? AND lane = ? AND seq = ?
"""
# In a key that is parked, what comes behind is parked.
HOLD_BEHIND: Final = """
UPDATE {outbox} SET held = 2, state = CASE WHEN :parked AND state = 'PENDING' THEN 'PARKED' ELSE state END,
       updatedat = CASE WHEN :parked THEN {now} ELSE updatedat END
 WHERE rowid IN (
   SELECT rowid FROM {outbox} WHERE {open} AND held = 0 AND coalesce(tenant, '') = :tenant AND lane = :lane
      AND seq >= :seq ORDER BY seq LIMIT 100)
"""
IS_PARKED: Final = "SELECT 1 FROM {parked} WHERE tenant = ? AND lane = ?"
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
  held = CASE WHEN :state = 'FAILED' THEN 2 WHEN :delay IS NOT NULL THEN 1 ELSE held END,
  lease_owner = NULL, lease_until = NULL
WHERE id = :id AND state = 'PENDING' AND lease_token = :token AND lease_owner = :owner
"""
AGE: Final = "SELECT max((julianday('now') - julianday(createdat)) * 86400, 0) FROM {outbox} WHERE id = ?"
SETTLED_BEFORE: Final = """
SELECT 1 FROM {outbox} WHERE id = ? AND lease_token = ? AND lease_owner IS NULL AND state = ?
"""
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
UPDATE {outbox} SET state = 'PARKED', held = 2, updatedat = {now}, lease_owner = NULL, lease_until = NULL
 WHERE {open} AND held IN (0, 1, 2) AND coalesce(tenant, '') = ? AND lane = ? AND seq > ? AND state = 'PENDING'
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
POLICY: Final = "SELECT policy FROM {meta}"
SET_POLICY: Final = "UPDATE {meta} SET policy = ? WHERE policy <> ?"
RELEASE_ALL: Final = "UPDATE {outbox} SET held = 0 WHERE {open} AND held IN (1, 2) AND state = 'PENDING'"
