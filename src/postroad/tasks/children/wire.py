"""What workers, zygotes, monitors and children say to each other: frames of a length and bytes."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct(">I")

# The first byte of what a child says.
SETTLED, ACTIVITY, RESULT, FAILURE = b"S", b"A", b"R", b"F"


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task as another process finds it."""

    name: str
    module: str = ""
    qualname: str = ""
    command: tuple[str, ...] | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    memory_limit: int | None = None
    pass_env: tuple[str, ...] = ()
    fresh: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a zygote imports, and how its children live."""

    sys_path: tuple[str, ...]
    imports: tuple[str, ...]
    tasks: tuple[TaskEntry, ...]
    main: dict[str, str]
    worker: int
    directory: str
    """Where children work; removed by whoever of worker and zygote is the last."""
    child_reuse: int
    max_output_bytes: int


class Catalog(msgspec.Struct, frozen=True, tag=True):
    """The tasks a zygote found."""

    tasks: tuple[TaskEntry, ...]


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Why a zygote cannot work."""

    error: str


class Order(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One attempt to be run. `document` is the JSON that a command reads."""

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


class Halt(msgspec.Struct, frozen=True, tag=True):
    """End the running child: SIGTERM, and SIGKILL after `grace` seconds; without grace SIGKILL at once."""

    grace: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A child waits for its order, and its monitor with it."""

    pid: int
    monitor: int


class Active(msgspec.Struct, frozen=True, tag=True):
    """What a child says it is doing, as JSON."""

    activity: bytes


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How a child ended, or what it did before it waits for more."""

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
    said: bytes = b""
    """The child's last word: a result or a failure, as JSON behind its first byte."""
    too_long: bool = False
    """Its result was above the limit and is not here."""
    out: bytes | None = None
    err: bytes | None = None
    """The last lines of a command's two streams."""
    last_lines: tuple[str, ...] = ()
    last_activity: bytes | None = None


ToMonitor = Order | Halt
FromMonitor = Ready | Active | Report
FromZygote = Catalog | Refusal

to_monitor = msgspec.msgpack.Decoder(ToMonitor)
from_monitor = msgspec.msgpack.Decoder(FromMonitor)
from_zygote = msgspec.msgpack.Decoder(FromZygote)
encode = msgspec.msgpack.encode


def frame(data: bytes) -> bytes:
    """The bytes behind their length."""
    return _LENGTH.pack(len(data)) + data


def message(value: Any) -> bytes:
    """The frame of a value."""
    return frame(encode(value))


class FrameTooLong(Exception):
    """A frame above the limit is announced: whatever writes there is not one of ours."""


class Frames:
    """Frames out of bytes as they come; `limit` bounds what a frame may hold, None: it comes from our own side."""

    def __init__(self, limit: int | None = None) -> None:
        self._bytes = bytearray()
        self._lost = False
        self.limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now; none any more behind one that was too long."""
        if self._lost:
            return []
        self._bytes += data
        found = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if self.limit is not None and end > self.limit:
                # Nobody knows where the next one would begin.
                self._lost = True
                raise FrameTooLong
            if len(self._bytes) < end:
                break
            found.append(bytes(self._bytes[_LENGTH.size : end]))
            del self._bytes[:end]
        return found


def read_frame(descriptor: int) -> bytes | None:
    """The next frame and not a byte more; None at the end."""
    head = _read_exactly(descriptor, _LENGTH.size)
    return None if head is None else _read_exactly(descriptor, _LENGTH.unpack(head)[0])


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however often it takes."""
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


class WorkerGone(Exception):
    """The worker closed its end or died: everything of it ends."""


class WorkerLink:
    """Takes in what the worker says, and tells it what happens."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames = Frames()

    def fileno(self) -> int:
        """For polls."""
        return self._end.fileno()

    def tell(self, value: FromMonitor) -> None:
        """Tell the worker."""
        try:
            self._end.sendall(message(value))
        except OSError as error:
            raise WorkerGone from error

    def hear(self) -> list[ToMonitor]:
        """What the worker has said since the last time; waits for it."""
        try:
            data = self._end.recv(1 << 18)
        except OSError as error:
            raise WorkerGone from error
        if not data:
            raise WorkerGone
        return [to_monitor.decode(found) for found in self._frames.feed(data)]
