"""The nemeses beside the supervisor: programs that visit the live file, and a disk that is full for a while."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from postroad.testing.verify.plan import Action
from postroad.testing.verify.scenario import History

_VISITS = {
    "read": "print(file.execute('SELECT count(*) FROM message').fetchone()[0])",
    "check": "assert file.execute('PRAGMA quick_check').fetchall() == [('ok',)]",
    "back up": "file.backup(sqlite3.connect(sys.argv[2]))",
    "vacuum into": "file.execute('VACUUM INTO ?', sys.argv[2:])",
    "vacuum": "file.execute('VACUUM')",
}
_VISITOR = "import sqlite3, sys; file = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\n"
_CLONE_NEWNS = 0x20000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2
_STEP_BYTES = 1 << 20


class RunFailed(Exception):
    """The run cannot go on: a process did not start, did not end, or died by itself."""


class Nemeses:
    """What breaks a run besides the signals to its processes: nothing, unless a store has more."""

    def arm(self) -> None:
        """Begin with faults that the plan does not time; all processes are at work."""

    def begin(self, action: Action, processes: Iterable[int]) -> None:
        """Begin what the plan says; it goes on beside everything else."""

    def look(self) -> bool:
        """Do what is due by now, and return whether all untimed faults have happened."""
        return True

    def cease(self) -> None:
        """End every fault, so that everything can drain."""

    def close(self) -> None:
        """Leave nothing behind, whatever happened."""


class FileNemeses(Nemeses):
    """Visitors of the embedded file, and its full disk. The file is in a directory that holds nothing else.

    A visitor is a stock `sqlite3` program that reads, checks, backs up or vacuums the file while others work on it.
    """

    def __init__(self, path: Path, history: History, *, megabytes: int) -> None:
        self._path, self._history = path, history
        self._disk = _Disk(path.parent, megabytes=megabytes)
        self._visits: list[tuple[str, subprocess.Popen[str]]] = []
        self._copies: list[Path] = []

    def begin(self, action: Action, processes: Iterable[int]) -> None:
        if action.do == "visit":
            name = list(_VISITS)[int(action.pick * len(_VISITS))]
            self._copies.append(self._path.parent.parent / f"copy-{len(self._copies)}.db")
            command = [sys.executable, "-c", _VISITOR + _VISITS[name], str(self._path), str(self._copies[-1])]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            self._visits.append((name, process))
        elif action.do == "fill":
            self._disk.fill(action.seconds, processes)

    def look(self) -> bool:
        self._disk.look()
        return True

    def cease(self) -> None:
        """Make room on the disk, and wait for the visitors.

        One that could not read the file is a violation, one that was kept waiting is none.
        """
        self._disk.look(at_once=True)
        for name, process in self._visits:
            _, said = process.communicate()
            ok = process.returncode == 0 or "locked" in said or "full" in said
            self._history.check("I27", ok, f"{name}: {said.strip()[-200:]}")
        self._visits.clear()
        for copy in self._copies:
            copy.unlink(missing_ok=True)

    def close(self) -> None:
        for _, process in self._visits:
            process.kill()
            process.communicate()
        self._disk.close()


class _Disk:
    """The directory of the store as a small file system of its own; where none can be mounted, a limit for files.

    The mount belongs to this process and its children, and is gone with them.
    """

    def __init__(self, directory: Path, *, megabytes: int) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._mounted = sys.platform == "linux" and _mount(directory, megabytes)
        self._empty_at: float | None = None
        self._limited: list[int] = []

    def fill(self, seconds: float, processes: Iterable[int]) -> None:
        """Leave no room for `seconds`; without a disk of its own, let no file of `processes` grow."""
        self._empty_at = time.monotonic() + seconds
        if self._mounted:
            with suppress(OSError), (self._directory / "ballast").open("wb", buffering=0) as ballast:
                while ballast.write(b"\0" * _STEP_BYTES) == _STEP_BYTES:
                    pass
        elif sys.platform == "linux":
            self._limited = list(processes)
            self._limit(max((each.stat().st_size for each in self._directory.iterdir()), default=0))

    def look(self, *, at_once: bool = False) -> None:
        """Make room again when it is time."""
        if self._empty_at is None or not (at_once or time.monotonic() >= self._empty_at):
            return
        self._empty_at = None
        (self._directory / "ballast").unlink(missing_ok=True)
        if sys.platform == "linux":
            self._limit(resource.RLIM_INFINITY)
        self._limited.clear()

    def close(self) -> None:
        if self._mounted:
            ctypes.CDLL(None).umount2(os.fsencode(self._directory), _MNT_DETACH)

    def _limit(self, size: int) -> None:
        for pid in self._limited:
            with suppress(ProcessLookupError, PermissionError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def _mount(directory: Path, megabytes: int) -> bool:
    """Mount a small file system that only this process and its children see; return whether that is allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = f"size={megabytes}m,mode=0700".encode()
    return bool(
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) == 0
        and libc.mount(b"none", os.fsencode(directory), b"tmpfs", 0, size) == 0
    )
