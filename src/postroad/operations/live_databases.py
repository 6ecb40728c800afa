"""The files and servers that queues, outboxes and inboxes lie in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from postroad.connections.database import dialect_of, path_of, postgres_database
from postroad.connections.inspecting import FileState, application_file, engine_file
from postroad.engine.file import FIXED_VERSION
from postroad.settings import data_path
from postroad.topology.findings import Finding

BLOAT_BYTES: Final = 100_000_000
BLOAT_PART: Final = 0.5
_SOUND = ".".join(map(str, FIXED_VERSION))


def engine_findings(url: str) -> Iterator[Finding]:
    """What is wrong with the file of the embedded engine, where the backend is one."""
    path = data_path(url)
    if path is not None:
        yield from judged(path, engine_file(path))


def judged(path: Path, state: FileState) -> Iterator[Finding]:
    """What the engine's library and the way the file keeps its log put at risk."""
    if not state.sound:
        message = f"{path}: SQLite {state.library} can damage its log when two processes checkpoint in a row"
        yield Finding("sqlite-version", "error", str(path), message, f"pip install -U apsw, to {_SOUND} or newer.")
    if state.journal_mode != "wal":
        message = f"{path}: keeps its log in mode {state.journal_mode!r}, so that readers and writers stop each other"
        remedy = "Close every program that has it open; Postroad turns to a write-ahead log when it opens the file."
        yield Finding("sqlite-sync", "error", str(path), message, remedy)

    if state.free >= BLOAT_BYTES and state.free >= BLOAT_PART * state.size:
        message = f"{path}: {state.free / 1e6:,.0f} of its {state.size / 1e6:,.0f} MB hold nothing"
        remedy = "Run `postroad compact`; others may go on meanwhile."
        yield Finding("file-bloat", "warning", str(path), message, remedy)


def dsn_findings(dsn: str) -> Iterator[Finding]:
    """What is wrong with the application's database, as outbox and inbox use it."""
    if dialect_of(dsn) == "sqlite":
        path = Path(path_of(dsn))
        yield from _application_findings(path, application_file(path))
    else:
        yield from _server_findings(dsn)


def _application_findings(path: Path, state: FileState) -> Iterator[Finding]:
    if not state.sound and state.journal_mode == "wal":
        yield Finding(
            "sqlite-version", "warning", str(path),
            f"{path}: Python's SQLite {state.library} can damage its log when two processes checkpoint in a row",
            f"Run a Python with SQLite {_SOUND} or newer, or set PRAGMA journal_mode=DELETE.",
        )  # fmt: skip


def _server_findings(dsn: str) -> Iterator[Finding]:
    database = postgres_database(dsn, schema_remedy="Run `postroad outbox init`.")
    from postroad.connections.postgres import shares_servers

    if shares_servers(database):
        yield Finding(
            "pooler", "warning", "dsn",
            "dsn: successive transactions run in different processes of the server: "
            "LISTEN and session-wide advisory locks do not work there",
            "Name the server itself, or a pool in session mode; the outbox polls until then.",
        )  # fmt: skip
