"""The files of a store: who may read them, whether there is room for them, and whether the clock fits their times."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import disk_usage
from typing import Final

from postroad.settings import audit_path, data_path
from postroad.topology.findings import Finding

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
