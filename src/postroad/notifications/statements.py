"""The tables and statements of chat notifications, for PostgreSQL and SQLite.

`?` stands for a value, names in braces for tables and for what the two databases write differently.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from postroad.connections import Dialect
from postroad.outbox import Tables

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {offline_messages} (
  user_id text NOT NULL,
  message_id text NOT NULL,
  conversation_id text NOT NULL,
  sender_id text NOT NULL,
  content text NOT NULL,
  sent_at {time} NOT NULL,
  stored_at {time} NOT NULL,
  delivered_at {time},
  PRIMARY KEY (user_id, message_id)
);
CREATE INDEX IF NOT EXISTS offline_messages_pending
  ON {offline_messages} (user_id, stored_at, message_id) WHERE delivered_at IS NULL;
CREATE INDEX IF NOT EXISTS offline_messages_undelivered ON {offline_messages} (stored_at) WHERE delivered_at IS NULL;
CREATE INDEX IF NOT EXISTS offline_messages_delivered ON {offline_messages} (delivered_at)
  WHERE delivered_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS {devices} (
  token text NOT NULL PRIMARY KEY,
  user_id text NOT NULL,
  platform text,
  registered_at {time} NOT NULL,
  dropped_at {time},
  drop_reason text
);
CREATE INDEX IF NOT EXISTS devices_live ON {devices} (user_id, registered_at) WHERE dropped_at IS NULL;
CREATE TABLE IF NOT EXISTS {push_results} (
  push_id text NOT NULL,
  token_hash text NOT NULL,
  outcome text NOT NULL,
  attempts integer NOT NULL,
  status integer,
  reason text NOT NULL,
  provider_id text,
  updated_at {time} NOT NULL,
  PRIMARY KEY (push_id, token_hash)
);
CREATE INDEX IF NOT EXISTS push_results_age ON {push_results} (updated_at);
CREATE INDEX IF NOT EXISTS push_results_device ON {push_results} (token_hash, updated_at);
CREATE INDEX IF NOT EXISTS devices_user ON {devices} (user_id, registered_at);
CREATE TABLE IF NOT EXISTS {device_owners} (  -- a device registers again whenever its app starts
  token text NOT NULL PRIMARY KEY,
  user_id text NOT NULL,
  since {time} NOT NULL
);
"""
_TIME: Final[dict[Dialect, str]] = {"postgresql": "timestamptz", "sqlite": "text"}
# A writing transaction on SQLite is a lock already.
_LOCK: Final[dict[Dialect, str]] = {
    "postgresql": "SELECT pg_advisory_xact_lock(hashtext('postroad notifications'))",
    "sqlite": "SELECT 1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """The statements of one store."""

    lock: str
    tables: str = _TABLES
    check: str = "SELECT count(*) FROM {devices} WHERE token = ''"
    keep: str = """
INSERT INTO {offline_messages} (user_id, message_id, conversation_id, sender_id, content, sent_at, stored_at)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (user_id, message_id) DO NOTHING RETURNING 1"""
    kept: str = """
SELECT conversation_id, sender_id, content, sent_at FROM {offline_messages} WHERE user_id = ? AND message_id = ?"""
    pending: str = """
SELECT user_id, message_id, conversation_id, sender_id, content, sent_at FROM {offline_messages}
 WHERE user_id = ? AND delivered_at IS NULL ORDER BY stored_at, message_id LIMIT ?"""
    pending_after: str = """
SELECT user_id, message_id, conversation_id, sender_id, content, sent_at FROM {offline_messages}
 WHERE user_id = ? AND delivered_at IS NULL AND (stored_at, message_id) > (
   SELECT stored_at, message_id FROM {offline_messages} WHERE user_id = ? AND message_id = ?)
 ORDER BY stored_at, message_id LIMIT ?"""
    deliver: str = """
UPDATE {offline_messages} SET delivered_at = ?
 WHERE user_id = ? AND delivered_at IS NULL AND message_id IN {among}"""
    register: str = """
INSERT INTO {devices} (token, user_id, platform, registered_at) VALUES (?, ?, ?, ?)
ON CONFLICT (token) DO UPDATE SET user_id = excluded.user_id, platform = excluded.platform,
  registered_at = excluded.registered_at, dropped_at = NULL, drop_reason = NULL"""
    own: str = """
INSERT INTO {device_owners} AS held (token, user_id, since) VALUES (?, ?, ?)
ON CONFLICT (token) DO UPDATE SET user_id = excluded.user_id,
  since = CASE WHEN held.user_id = excluded.user_id THEN held.since ELSE excluded.since END"""
    devices: str = """
SELECT token, user_id, platform FROM {devices} WHERE user_id = ? AND dropped_at IS NULL
 ORDER BY registered_at DESC, token LIMIT ?"""
    every_device: str = """
SELECT device.token, platform, registered_at, dropped_at, drop_reason, coalesce(since, registered_at)
 FROM {devices} AS device LEFT JOIN {device_owners} AS owner
   ON owner.token = device.token AND owner.user_id = device.user_id
 WHERE device.user_id = ? ORDER BY registered_at DESC, device.token LIMIT ?"""
    count_pending: str = "SELECT count(*) FROM {offline_messages} WHERE user_id = ? AND delivered_at IS NULL"
    any_message: str = "SELECT 1 FROM {offline_messages} WHERE user_id = ? LIMIT 1"
    device_results: str = """
SELECT push_id, token_hash, outcome, attempts, status, reason, provider_id, updated_at FROM {push_results}
 WHERE token_hash IN {among} ORDER BY updated_at DESC, push_id LIMIT ?"""
    push_results: str = """
SELECT push_id, token_hash, outcome, attempts, status, reason, provider_id, updated_at FROM {push_results}
 WHERE push_id = ? ORDER BY updated_at, token_hash"""
    among_devices: str = "SELECT token, user_id, platform, dropped_at FROM {devices} WHERE token IN {among}"
    drop: str = """
UPDATE {devices} SET dropped_at = ?, drop_reason = ? WHERE token = ? AND dropped_at IS NULL AND registered_at <= ?"""
    restore: str = "UPDATE {devices} SET dropped_at = NULL, drop_reason = NULL WHERE drop_reason = ?"
    record: str = """
INSERT INTO {push_results} AS held (push_id, token_hash, outcome, attempts, status, reason, provider_id, updated_at)
VALUES (?, ?, ?, 1, ?, ?, ?, ?)
ON CONFLICT (push_id, token_hash) DO UPDATE SET outcome = excluded.outcome, attempts = held.attempts + 1,
  status = excluded.status, reason = excluded.reason, provider_id = excluded.provider_id,
  updated_at = excluded.updated_at"""
    prune_delivered: str = """
DELETE FROM {offline_messages} WHERE (user_id, message_id) IN (
  SELECT user_id, message_id FROM {offline_messages} WHERE delivered_at <= ? ORDER BY delivered_at LIMIT ?
  {skip_locked})"""
    prune_undelivered: str = """
DELETE FROM {offline_messages} WHERE (user_id, message_id) IN (
  SELECT user_id, message_id FROM {offline_messages} WHERE delivered_at IS NULL AND stored_at <= ? ORDER BY stored_at
  LIMIT ? {skip_locked})"""
    prune_results: str = """
DELETE FROM {push_results} WHERE (push_id, token_hash) IN (
  SELECT push_id, token_hash FROM {push_results} WHERE updated_at <= ? ORDER BY updated_at LIMIT ? {skip_locked})"""


def statements(tables: Tables) -> Statements:
    own = {table: tables.qualified(table) for table in ("offline_messages", "devices", "push_results", "device_owners")}
    sql = tables.with_phrases({**own, "time": _TIME[tables.dialect]})
    written = Statements(lock=_LOCK[tables.dialect])
    return Statements(**{field.name: sql(getattr(written, field.name)) for field in fields(Statements)})
