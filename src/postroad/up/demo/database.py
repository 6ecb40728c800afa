"""The application's own database of the demo: what it published, what came of it, its accounts, and the provider."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from postroad.views import PartState, SceneShown

SCENES = ("bus", "outbox", "tasks", "agents", "notifications")
KEEP_SECONDS = 600.0
ProviderState = Literal["healthy", "failing", "repaired"]
_SCHEMA = """
CREATE TABLE IF NOT EXISTS demo_scene (
    name TEXT PRIMARY KEY, published INTEGER NOT NULL, handled INTEGER NOT NULL, failed INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS demo_event (
    scene TEXT, id TEXT, wanted INTEGER NOT NULL, at REAL NOT NULL, PRIMARY KEY (scene, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS demo_effect (
    scene TEXT, id TEXT, handler TEXT, times INTEGER NOT NULL, PRIMARY KEY (scene, id, handler)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS provider (one INTEGER PRIMARY KEY CHECK (one = 1), fails_at REAL, repaired_at REAL);
"""
_ADD_SCENE = "INSERT OR IGNORE INTO demo_scene VALUES (?, 0, 0, 0)"
_ADD_PROVIDER = "INSERT OR IGNORE INTO provider VALUES (1, NULL, NULL)"
_ADD_EVENT = "INSERT OR IGNORE INTO demo_event VALUES (?, ?, ?, ?)"
_COUNT_PUBLISHED = "UPDATE demo_scene SET published = published + 1 WHERE name = ?"
_ADD_EFFECT = """
INSERT INTO demo_effect VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET times = times + excluded.times RETURNING times
"""
_COUNT_FAILED = "UPDATE demo_scene SET failed = failed + ? WHERE name = ?"
_COUNT_HANDLED = """
UPDATE demo_scene SET handled = handled + 1 WHERE name = :scene
AND (SELECT wanted FROM demo_event WHERE scene = :scene AND id = :id)
  = (SELECT count(*) FROM demo_effect WHERE scene = :scene AND id = :id)
"""
_OPEN = """
SELECT id FROM demo_event AS e WHERE scene = ?
AND wanted > (SELECT count(*) FROM demo_effect AS f WHERE f.scene = e.scene AND f.id = e.id) ORDER BY at
"""
_LOST = """
SELECT count(*) FROM demo_event AS e
WHERE wanted > (SELECT count(*) FROM demo_effect AS f WHERE f.scene = e.scene AND f.id = e.id)
"""
_DUPLICATED = "SELECT coalesce(sum(times - 1), 0) FROM demo_effect WHERE times > 1"
_OLD = """
SELECT scene, id FROM demo_event AS e WHERE at < ?
AND wanted <= (SELECT count(*) FROM demo_effect AS f WHERE f.scene = e.scene AND f.id = e.id) LIMIT 10000
"""
_FORGET_EVENT = "DELETE FROM demo_event WHERE scene = ? AND id = ?"
_FORGET_EFFECTS = "DELETE FROM demo_effect WHERE scene = ? AND id = ?"


def record_published(connection: sqlite3.Connection, scene: str, id: str, *, effects: int = 1) -> None:
    """Record an event that was published, and how many different effects it must have; a repeat changes nothing."""
    if not connection.execute(_ADD_EVENT, (scene, id, effects, time.time())).rowcount:
        return
    connection.execute(_COUNT_PUBLISHED, (scene,))
    connection.execute(_COUNT_HANDLED, {"scene": scene, "id": id})


def record_effect(
    connection: sqlite3.Connection, scene: str, id: str, handler: str, *, times: int = 1, failures: int = 0
) -> None:
    """Record that a handler has made its effect, after so many attempts that failed."""
    [(total,)] = connection.execute(_ADD_EFFECT, (scene, id, handler, times)).fetchall()
    if total == times:
        connection.execute(_COUNT_HANDLED, {"scene": scene, "id": id})
    if failures:
        connection.execute(_COUNT_FAILED, (failures, scene))


@dataclass(frozen=True, slots=True)
class Check:
    """What must not happen: events without their effects, effects made twice, and money that appears or vanishes."""

    lost: int
    duplicated_effects: int
    ledger_sum: int


class DemoDatabase:
    """The SQLite file of the demo's application. Any number of processes and threads may open it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_SCHEMA)
        with self.transaction() as connection:
            connection.executemany(_ADD_SCENE, [(name,) for name in SCENES])
            connection.execute(_ADD_PROVIDER)

    @property
    def dsn(self) -> str:
        """The address of the file, as the outbox names it."""
        return f"sqlite:///{self.path}"

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what the block changes, or nothing of it."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def published(self, scene: str, id: str, *, effects: int = 1) -> None:
        """Record an event as `record_published` does, in a transaction of its own."""
        with self.transaction() as connection:
            record_published(connection, scene, id, effects=effects)

    def effect(self, scene: str, id: str, handler: str, *, times: int = 1, failures: int = 0) -> None:
        """Record an effect as `record_effect` does, in a transaction of its own."""
        with self.transaction() as connection:
            record_effect(connection, scene, id, handler, times=times, failures=failures)

    def failed(self, scene: str) -> None:
        """Count an attempt that failed."""
        with self.transaction() as connection:
            connection.execute(_COUNT_FAILED, (1, scene))

    def scenes(self, state: PartState = "running") -> list[SceneShown]:
        """Return the counts of every scene; all of them are in the `state` of the part `demo`."""
        rows = self._rows("SELECT name, published, handled, failed FROM demo_scene")
        found = {name: SceneShown(name, state, *counts) for name, *counts in rows}
        return [found[name] for name in SCENES]

    def open_events(self, scene: str) -> list[str]:
        """Return the ids of the events whose effects are not all made, oldest first."""
        return [id for (id,) in self._rows(_OPEN, scene)]

    def check(self) -> Check:
        """Count what was lost or made twice, and add up all accounts."""
        [(lost,)], [(duplicated,)] = self._rows(_LOST), self._rows(_DUPLICATED)
        [(ledger,)] = self._rows("SELECT coalesce(sum(balance), 0) FROM account")
        return Check(lost, duplicated, ledger)

    def prune(self, *, older_than: float = KEEP_SECONDS) -> int:
        """Forget events whose effects were made long ago, and return how many."""
        with self.transaction() as connection:
            old = connection.execute(_OLD, (time.time() - older_than,)).fetchall()
            connection.executemany(_FORGET_EVENT, old)
            connection.executemany(_FORGET_EFFECTS, old)
        return len(old)

    def provider(self) -> ProviderState:
        """Return whether the push provider accepts pushes."""
        [(fails_at, repaired_at)] = self._rows("SELECT fails_at, repaired_at FROM provider")
        if fails_at is None or time.time() < fails_at:
            return "healthy"
        return "failing" if repaired_at is None else "repaired"

    def begin_story(self, fails_after: float) -> None:
        """Let the provider fail after so many seconds, unless the time is set already."""
        with self.transaction() as connection:
            connection.execute("UPDATE provider SET fails_at = ? WHERE fails_at IS NULL", (time.time() + fails_after,))

    def forget_story(self) -> None:
        """Begin again with a provider that works."""
        with self.transaction() as connection:
            connection.execute("UPDATE provider SET fails_at = NULL, repaired_at = NULL")

    def repair_provider(self) -> None:
        """Let the provider accept pushes again, if it fails."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE provider SET repaired_at = ?1 WHERE fails_at <= ?1 AND repaired_at IS NULL", (time.time(),)
            )

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()
