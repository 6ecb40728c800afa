"""What the doctor finds about the files of a store and the database beside it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Final

from postroad.connections import application_file_state, dialect_of, engine_file_state, path_of, postgres_database
from postroad.engine import FIXED_VERSION
from postroad.settings import audit_path, data_path
from postroad.topology import Finding

if TYPE_CHECKING:
    from postroad.connections import FileState

BLOAT_BYTES: Final = 100_000_000
BLOAT_PART: Final = 0.5
_SOUND = ".".join(map(str, FIXED_VERSION))


def engine_findings(url: str) -> Iterator[Finding]:
    """What is wrong with the file of the embedded engine, where the backend is one."""
    path = data_path(url)
    if path is not None:
        yield from judged(path, engine_file_state(path))


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
        yield from _application_findings(path, application_file_state(path))
    else:
        yield from _server_findings(dsn)


def _application_findings(path: Path, state: FileState) -> Iterator[Finding]:
    if not state.sound and state.journal_mode == "wal":
        yield Finding(
            "sqlite-version",
            "warning",
            str(path),
            f"{path}: Python's SQLite {state.library} can damage its log when two processes checkpoint in a row",
            f"Run a Python with SQLite {_SOUND} or newer, or set PRAGMA journal_mode=DELETE.",
        )


def _server_findings(dsn: str) -> Iterator[Finding]:
    database = postgres_database(dsn, schema_remedy="Run `postroad outbox init`.")
    from postroad.connections import shares_servers

    if shares_servers(database):
        yield Finding(
            "pooler",
            "warning",
            "dsn",
            "dsn: successive transactions run in different processes of the server: "
            "LISTEN and session-wide advisory locks do not work there",
            "Name the server itself, or a pool in session mode; the outbox polls until then.",
        )


LEAST_FREE_BYTES: Final = 200_000_000
LEAST_FREE_PART: Final = 0.05
MOST_LOG_BYTES: Final = 1_000_000_000
_COMPANIONS: Final = ("-wal", "-shm", ".token", ".tokens.json", ".secret", ".blobs")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_EPOCH: Final = datetime(2020, 1, 1, tzinfo=UTC)
# Clocks of one machine and its disks differ by this much without anybody having set one back.
_TOLERANCE: Final = timedelta(minutes=1)


def file_findings(url: str, now: datetime) -> Iterator[Finding]:
    """What is doubtful about the files of the backend and its audit file; `now` is its clock's."""
    if now < _EPOCH:
        yield _clock("clock", f"the clock says {now.isoformat()}")
    data = data_path(url)
    if data is None:
        return
    files = [data, *(data.with_name(data.name + suffix) for suffix in _COMPANIONS), audit_path(url)]
    for path in files:
        if path.exists():
            yield from _one(path, now)
    yield from _log_size(data.with_name(f"{data.name}-wal"))
    yield from _room(data)


def _one(path: Path, now: datetime) -> Iterator[Finding]:
    found = path.stat()
    if found.st_mode & _OTHERS:
        wanted = "700" if path.is_dir() else "600"
        message = f"{path}: others than its owner may use it (mode {stat.S_IMODE(found.st_mode):o})"
        yield Finding("file-mode", "error", str(path), message, f"chmod {wanted} {path}.")
    written = datetime.fromtimestamp(found.st_mtime, UTC)
    if written > now + _TOLERANCE:
        yield _clock(str(path), f"{path}: was written at {written.isoformat()}, and the clock says {now.isoformat()}")


def _clock(target: str, message: str) -> Finding:
    return Finding("clock", "error", target, message, "Set the clock of the machine; times that are stored stay.")


def _log_size(log: Path) -> Iterator[Finding]:
    size = log.stat().st_size if log.exists() else 0
    if size > MOST_LOG_BYTES:
        message = f"{log}: the log has {size / 1e9:.1f} GB; a program that reads for long keeps it from starting anew"
        yield Finding("wal-size", "warning", str(log), message, "End the program that has the file open for reading.")


def _room(data: Path) -> Iterator[Finding]:
    space = disk_usage(data.absolute().parent)
    if space.free < LEAST_FREE_BYTES or space.free < LEAST_FREE_PART * space.total:
        message = f"{data}: {space.free / 1e6:,.0f} MB are free on its disk, {space.free / space.total:.1%} of it"
        yield Finding("disk-space", "warning", str(data), message, "Make room: sends fail when the disk is full.")
