"""What only the kernel can promise about processes; elsewhere than on Linux it promises less."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_LINUX = sys.platform == "linux"
_OPEN_FILES = 1_024
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents die."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies; one that is dead already ends us now."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def give_up_privileges() -> None:
    """Let no program that is started from here gain privileges, and write no core file."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def limit_memory(size: int | None) -> None:
    """Bound the address space; None leaves it as wide as it is allowed to be."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard if size is None else size if hard == resource.RLIM_INFINITY else min(size, hard)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def end_descendants(*, within: float) -> bool:
    """Kill every descendant and wait until they are gone; False when some are still there after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            if time.monotonic() > deadline:
                return False
            for descendant in descendants(os.getpid()):
                kill(descendant, signal.SIGKILL)
            time.sleep(0.001)


def descendants(ancestor: int) -> list[int]:
    """The processes that stem from this one."""
    parents = _parents()
    found, level = list[int](), {ancestor}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(leader: int, number: int) -> None:
    """Send a signal to a group that may be gone, and let stopped members hear it."""
    for each in (number, signal.SIGCONT):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, each)


def resident_bytes(pid: int) -> int:
    """How much memory the process holds now; 0 when that cannot be told."""
    return _pages(pid, 1) * resource.getpagesize()


def address_space_bytes(pid: int) -> int:
    """How much memory the process has asked for, held or not; 0 when that cannot be told."""
    return _pages(pid, 0) * resource.getpagesize()


def _pages(pid: int, field: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[field])
    except (OSError, IndexError, ValueError):
        return 0


def oom_kills() -> int:
    """How often the kernel has killed for want of memory since it started; 0 when that cannot be told."""
    try:
        lines = Path("/proc/vmstat").read_bytes().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(b"oom_kill ")), 0)


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, value, 0, 0, 0)


def _parents() -> dict[int, int]:
    """Who is whose child, by a look at all processes."""
    found = {}
    for entry in os.scandir("/proc") if _LINUX else ():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                # The command's name may hold spaces and brackets; what follows its last bracket does not.
                rest = Path(entry.path, "stat").read_bytes().rpartition(b")")[2]
                found[int(entry.name)] = int(rest.split()[1])
    return found
