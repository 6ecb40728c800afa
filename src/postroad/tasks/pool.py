"""The worker's side of its children: its zygote, and a slot for each child that runs at the same time."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from postroad.errors import ConfigurationError
from postroad.tasks import processes
from postroad.tasks.processes import FromMonitor, Order, Plan, TaskEntry
from postroad.tasks.registry import TaskDefinition
from postroad.tasks.task_child import BOOT, entry_of, import_path, main_module

_END_SECONDS = 10.0


class SlotLost(Exception):
    """The monitor died; its child is dead or dying."""


class ChildSlot:
    """A socket to one monitor. One thread sends orders and waits; any thread may halt."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._frames = processes.Frames()
        self._received: list[FromMonitor] = []
        self._sending = threading.Lock()
        self._events = select.poll()
        self._events.register(end, select.POLLIN)

    def order(self, order: Order) -> None:
        """Let the waiting child run an order."""
        self._send(processes.message(order))

    def halt(self, grace: float) -> None:
        """End the running child; a child that has ended already is not affected."""
        with suppress(SlotLost):
            self._send(processes.message(processes.Halt(grace)))

    def receive(self, timeout: float | None = None) -> FromMonitor | None:
        """Return the next message of the monitor; None after the timeout. Raise `SlotLost` if the monitor is gone."""
        while not self._received:
            if not self._events.poll(None if timeout is None else max(0.0, timeout) * 1_000):
                return None
            try:
                data = self._socket.recv(1 << 18)
            except OSError as error:
                raise SlotLost from error
            if not data:
                raise SlotLost
            self._received += [processes.from_monitor.decode(found) for found in self._frames.feed(data)]
        return self._received.pop(0)

    def close(self) -> None:
        """End the monitor and its child."""
        with self._sending:
            self._socket.close()

    def _send(self, data: bytes) -> None:
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError as error:
                raise SlotLost from error


class ChildPool:
    """The zygote of one worker; it is started again if it dies."""

    def __init__(
        self,
        definitions: Iterable[TaskDefinition],
        *,
        imports: tuple[str, ...],
        environment: Mapping[str, str],
        child_reuse: int,
        max_output_bytes: int,
        task_output: str = "log",
    ) -> None:
        entries = tuple(entry_of(definition) for definition in definitions)
        self._plan = Plan(
            sys_path=import_path(),
            imports=imports,
            tasks=entries,
            main=main_module(entries),
            worker=0,
            directory="",
            child_reuse=child_reuse,
            max_output_bytes=max_output_bytes,
            task_output=task_output,
        )
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._directories: list[str] = []
        self._closed = False
        self.tasks: dict[str, TaskEntry] = {}
        """The tasks that the children know, once the zygote runs."""

    def start(self) -> None:
        """Start the zygote and wait until it has imported everything, or raise `ConfigurationError`."""
        with self._lock:
            self._closed = False
            self._start()

    def slot(self) -> ChildSlot:
        """Return a new slot, from a new zygote if the old one died; raise `SlotLost` if the pool is closed."""
        here, there = socket.socketpair()
        try:
            with self._lock, there:
                if not self._send(there):
                    if self._closed:
                        raise SlotLost
                    self._end()
                    self._start()
                    if not self._send(there):
                        raise SlotLost
        except BaseException:
            here.close()
            raise
        return ChildSlot(here)

    def _send(self, end: socket.socket) -> bool:
        if self._control is None:
            return False
        try:
            socket.send_fds(self._control, [b"k"], [end.fileno()])
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the zygote with all its descendants."""
        with self._lock:
            self._closed = True
            self._end()
            for directory in self._directories:
                # A zygote that was killed could not remove it.
                shutil.rmtree(directory, ignore_errors=True)
            self._directories.clear()

    def _start(self) -> None:
        directory = tempfile.mkdtemp(prefix="postroad-tasks-")
        # If the zygote is killed, its running children keep working there until the pool is closed.
        self._directories.append(directory)
        self._plan = msgspec.structs.replace(self._plan, directory=directory, worker=os.getpid())
        here, there = socket.socketpair()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT.format("zygote", "main"), *self._plan.sys_path],
                stdin=there.fileno(),
                # Output of modules during their import belongs to the log.
                stdout=_stderr(),
                stderr=_stderr(),
                env=self._environment,
                start_new_session=True,
            )
        self._control = here
        try:
            here.sendall(processes.message(self._plan))
            answer = processes.read_frame(here.fileno())
        except OSError:
            # It ended before it had read its plan.
            answer = None
        found = processes.Refusal("it ended at once") if answer is None else processes.from_zygote.decode(answer)
        if not isinstance(found, processes.Catalog):
            self._end()
            shutil.rmtree(self._directories.pop(), ignore_errors=True)
            raise ConfigurationError(
                f"imports: the tasks cannot be loaded in a child: {found.error}",
                field="imports",
                remedy="Name modules that a new interpreter can import; variables they need are named in pass_env.",
            )
        self.tasks = {entry.name: entry for entry in found.tasks}

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _stderr() -> int:
    """Return the standard error of this process, or DEVNULL if it is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
