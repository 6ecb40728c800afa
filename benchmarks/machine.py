"""The machine the figures were taken on."""

from __future__ import annotations

import os
import platform
import sqlite3
import tempfile
import time
from pathlib import Path

import apsw
import msgspec


class Machine(msgspec.Struct, frozen=True):
    """What decides how fast anything can be here."""

    cpu: str
    cores: int
    memory: int
    disk_fsync_per_second: int
    python: str
    sqlite: str
    kernel: str


def describe(directory: Path) -> Machine:
    """Look at the machine, and measure how often the disk under `directory` syncs in a second."""
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk_fsync_per_second=_fsyncs(directory),
        python=platform.python_version(),
        sqlite=f"{apsw.sqlite_lib_version()} (apsw), {sqlite3.sqlite_version} (interpreter)",
        kernel=platform.release(),
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _fsyncs(directory: Path, *, seconds: float = 0.5) -> int:
    with tempfile.TemporaryFile(dir=directory) as file:
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            os.pwrite(file.fileno(), b"x" * 4096, 0)
            os.fsync(file.fileno())
            count += 1
        return round(count / (time.perf_counter() - started))
