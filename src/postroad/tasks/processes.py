"""The processes of a worker: the frames they exchange, and what the kernel does for them; it does less off Linux."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from postroad.signals import prctl
from postroad.tasks.child_output import Reported
from postroad.tasks.schedules import Schedule

T = TypeVar("T")
_LENGTH = struct.Struct(">I")

# The first byte of a reply of a child.
SETTLED, REPORTED, RESULT, FAILURE = b"S", b"P", b"R", b"F"


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task as another process can find it."""

    name: str
    module: str = ""
    qualname: str = ""
    command: tuple[str, ...] | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    memory_limit: int | None = None
    pass_env: tuple[str, ...] = ()
    fresh: bool = False
    retry_base: float | None = None
    retry_cap: float | None = None
    retry_on: tuple[str, ...] = ()
    never_retry: tuple[str, ...] = ()
    """The classes as `module:qualname`."""
    schedule: Schedule | None = None
    queue: str | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a zygote imports, and the limits of its children."""

    sys_path: tuple[str, ...]
    imports: tuple[str, ...]
    tasks: tuple[TaskEntry, ...]
    main: dict[str, str]
    worker: int
    directory: str
    """Where children work; the last of worker and zygote removes it."""
    child_reuse: int
    max_output_bytes: int
    task_output: str = "log"
    names_files: bool = False
    """Whether the zygote tells which source files it has loaded."""


class Catalog(msgspec.Struct, frozen=True, tag=True):
    """The tasks that a zygote found."""

    tasks: tuple[TaskEntry, ...]
    files: tuple[str, ...] = ()
    """The source files that it has loaded, if the plan asks for them."""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Why a zygote cannot work."""

    error: str
    files: tuple[str, ...] = ()
    """The source files that it had loaded by then, and those in which it failed."""


class Order(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One attempt to run. `document` is the JSON that a command reads."""

    name: str
    request_id: str
    tenant_id: str
    run: int
    attempt: int
    token: int
    document: bytes
    timeout: float
    kill_grace: float
    deadline: float
    job_id: str | None = None
    task_id: str | None = None
    env: dict[str, str] = {}
    directory: str = ""
    """Where the child works; set by its monitor."""


class Halt(msgspec.Struct, frozen=True, tag=True):
    """End the running child: SIGTERM, and SIGKILL after `grace` seconds; without grace SIGKILL at once."""

    grace: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A child waits for its order; `monitor` is the process that watches it."""

    pid: int
    monitor: int


class Active(Reported, frozen=True, tag=True):
    """What a child reported last."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a child, or the result of its last order if it waits for another."""

    pid: int
    elapsed_ms: int
    exit_code: int | None = None
    """None when a signal ended it."""
    signal: str | None = None
    killed_with: str | None = None
    """The last signal the monitor itself sent."""
    timed_out: bool = False
    oom: bool = False
    peak_rss_bytes: int = 0
    reply: bytes = b""
    """The last reply of the child: a result or a failure, as JSON after its first byte."""
    too_long: bool = False
    """Its result was above the limit and is not included."""
    out: bytes | None = None
    err: bytes | None = None
    """The last lines of a command's two streams."""
    last_lines: tuple[str, ...] = ()
    reported: Reported = Reported()


ToMonitor = Order | Halt
FromMonitor = Ready | Active | Report
FromZygote = Catalog | Refusal

to_monitor = msgspec.msgpack.Decoder(ToMonitor)
from_monitor = msgspec.msgpack.Decoder(FromMonitor)
from_zygote = msgspec.msgpack.Decoder(FromZygote)
encode = msgspec.msgpack.encode


def frame(data: bytes) -> bytes:
    """Return the bytes with their length before them."""
    return _LENGTH.pack(len(data)) + data


def message(value: Any) -> bytes:
    return frame(encode(value))


class FrameTooLong(Exception):
    """A frame above the limit is announced, so the writer is not one of our processes."""


class Frames:
    """Splits bytes into frames as they arrive; `limit` bounds the size of a frame, None for our own processes."""

    def __init__(self, limit: int | None = None) -> None:
        self._bytes = bytearray()
        self._lost = False
        self.limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that are complete now; after a frame that was too long there are none."""
        if self._lost:
            return []
        self._bytes += data
        found = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if self.limit is not None and end > self.limit:
                # The start of the next frame is not known.
                self._lost = True
                raise FrameTooLong
            if len(self._bytes) < end:
                break
            found.append(bytes(self._bytes[_LENGTH.size : end]))
            del self._bytes[:end]
        return found


def read_frame(descriptor: int) -> bytes | None:
    """Read the next frame and not a byte more; return None at the end."""
    head = _read_exactly(descriptor, _LENGTH.size)
    return None if head is None else _read_exactly(descriptor, _LENGTH.unpack(head)[0])


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class PeerGone(Exception):
    """The worker or the monitor at the other end of a socket closed its end or died."""


class Link(Generic[T]):
    """One end of the socket between a worker and a monitor: one thread receives, and any may send."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._end = end
        self._frames = Frames()
        self._decoder = decoder
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, *values: ToMonitor | FromMonitor) -> None:
        with self._sending:
            try:
                self._end.sendall(b"".join(map(message, values)))
            except OSError as error:
                raise PeerGone from error

    def receive(self) -> list[T]:
        try:
            data = self._end.recv(1 << 18)
        except OSError as error:
            raise PeerGone from error
        if not data:
            raise PeerGone
        return [self._decoder.decode(found) for found in self._frames.feed(data)]

    def close(self) -> bool:
        """Close it; return False if it was closed before."""
        with self._sending:
            is_first = self._end.fileno() != -1
            self._end.close()
        return is_first


_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_LINUX = sys.platform == "linux"
_OPEN_FILES = 1_024


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parents die."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def give_up_privileges() -> None:
    """Let no program started from here gain privileges, write no core file, and limit open files."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def limit_memory(size: int | None) -> None:
    """Limit the address space; None sets the highest limit that is allowed."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard if size is None else size if hard == resource.RLIM_INFINITY else min(size, hard)
    if soft != before:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def end_descendants(*, within: float) -> bool:
    """Kill every descendant and wait until they are gone; return False if some are left after `within` seconds."""
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


def descendants(ancestor: int, *, spare: Collection[int] = ()) -> list[int]:
    """Return all descendants of a process, except the spared ones and theirs.

    One look at all processes: a child that a spared process forks meanwhile must not seem to be an orphan.
    """
    parents = _parents()
    found, level = list[int](), {ancestor}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level and pid not in spare}
        found += level
    return found


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(leader: int, number: int) -> None:
    """Send a signal to a group that may be gone, and continue its stopped members so that they receive it."""
    for each in (number, signal.SIGCONT):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, each)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of the process; 0 if it is not known."""
    return _pages(pid, 1) * resource.getpagesize()


def address_space_bytes(pid: int) -> int:
    """Return the size of the address space of the process; 0 if it is not known."""
    return _pages(pid, 0) * resource.getpagesize()


def _pages(pid: int, field: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[field])
    except (OSError, IndexError, ValueError):
        return 0


def oom_kills() -> int:
    """Return how often the kernel has killed a process for lack of memory; 0 if it is not known."""
    try:
        lines = Path("/proc/vmstat").read_bytes().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(b"oom_kill ")), 0)


def _parents() -> dict[int, int]:
    found = {}
    for entry in os.scandir("/proc") if _LINUX else ():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                # The command's name may hold spaces and brackets; what follows its last bracket does not.
                rest = Path(entry.path, "stat").read_bytes().rpartition(b")")[2]
                found[int(entry.name)] = int(rest.split()[1])
    return found
