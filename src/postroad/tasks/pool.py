"""The worker's side of its children: its zygote, and a slot for each child that runs at the same time."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from postroad.errors import ConfigurationError
from postroad.ports import TASK_DIRECTORY
from postroad.tasks import processes
from postroad.tasks.messages import log_event
from postroad.tasks.processes import FromMonitor, Link, Order, PeerGone, Plan, TaskEntry, from_monitor
from postroad.tasks.registry import TaskDefinition
from postroad.tasks.task_child import BOOT, entry_of, import_path, main_module

_END_SECONDS = 10.0


class ChildSlot:
    """A socket to one monitor. One thread sends orders and waits; any thread may halt."""

    def __init__(
        self, end: socket.socket, *, is_stale: Callable[[], bool] = lambda: False, closed: Callable[[], object] = int
    ) -> None:
        self.is_stale = is_stale
        """Whether the code of its child was replaced, so that it should run no other task."""
        self._closed = closed
        self._link = Link(end, from_monitor)
        self._received: list[FromMonitor] = []
        self._events = select.poll()
        self._events.register(end, select.POLLIN)

    def order(self, order: Order) -> None:
        self._link.send(order)

    def halt(self, grace: float) -> None:
        """End the running child; a child that has ended already is not affected."""
        with suppress(PeerGone):
            self._link.send(processes.Halt(grace))

    def receive(self, timeout: float | None = None) -> FromMonitor | None:
        """Return the next message of the monitor; None after the timeout. Raise `PeerGone` if the monitor is gone."""
        while not self._received:
            if not self._events.poll(None if timeout is None else max(0.0, timeout) * 1_000):
                return None
            self._received += self._link.receive()
        return self._received.pop(0)

    def close(self) -> None:
        """End the monitor and its child."""
        if self._link.close():
            self._closed()


@dataclass(slots=True, eq=False)
class _Zygote:
    """A process that has imported the tasks, and the slots that it serves."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    slots: int = 0

    def give(self, end: socket.socket) -> bool:
        """Give it the end of a slot; return False if it is dead."""
        try:
            socket.send_fds(self.control, [b"k"], [end.fileno()])
        except OSError:
            return False
        self.slots += 1
        return True

    def end(self) -> None:
        self.control.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ChildPool:
    """The zygote of one worker; it is started again if it dies and, if wanted, when a source file changes."""

    def __init__(
        self,
        definitions: Iterable[TaskDefinition],
        *,
        imports: tuple[str, ...],
        environment: Mapping[str, str],
        child_reuse: int,
        max_output_bytes: int,
        task_output: str = "log",
        reload: bool = False,
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
            names_files=reload,
        )
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._zygote: _Zygote | None = None
        self._retired: list[_Zygote] = []
        self._sources: dict[str, Stamp] = {}
        """The source files of the tasks, and how they looked when they were loaded."""
        self._directories: list[str] = []
        self._closed = False
        self.tasks: dict[str, TaskEntry] = {}
        """The tasks that the children know, once the zygote runs."""

    def start(self) -> None:
        """Start the zygote and wait until it has imported everything, or raise `ConfigurationError`."""
        with self._lock:
            self._closed = False
            self._zygote = self._start()

    def slot(self) -> ChildSlot:
        """Return a new slot, from a new zygote if the old one died; raise `PeerGone` if the pool is closed."""
        here, there = socket.socketpair()
        try:
            with self._lock, there:
                if self._zygote is None or not self._zygote.give(there):
                    if self._closed:
                        raise PeerGone
                    self._end()
                    self._zygote = self._start()
                    if not self._zygote.give(there):
                        raise PeerGone
                zygote = self._zygote
        except BaseException:
            here.close()
            raise
        return ChildSlot(here, is_stale=lambda: zygote in self._retired, closed=lambda: self._leave(zygote))

    def reload(self) -> int:
        """Replace the zygote if a source file changed; return whether it did.

        Running children finish with the code that they began with. If the new code cannot be imported, the error is
        logged, and the children keep the old code until a file changes again.
        """
        if not (changed := [name for name, stamp in self._sources.items() if _stamp(name) != stamp]):
            return 0
        with self._lock:
            if self._closed:
                return 0
            try:
                fresh = self._start()
            except ConfigurationError as error:
                log_event("worker_reload_failed", files=changed, error=error)
                return 0
            before, self._zygote = self._zygote, fresh
            if before is not None and before.slots:
                self._retired.append(before)
            elif before is not None:
                before.end()
        log_event("worker_reloaded", files=changed)
        return 1

    def _leave(self, zygote: _Zygote) -> None:
        """Note that a slot is closed; end the zygote that it belonged to if that was its last and it was replaced."""
        with self._lock:
            zygote.slots -= 1
            is_over = zygote.slots == 0 and zygote in self._retired
            if is_over:
                self._retired.remove(zygote)
        if is_over:
            zygote.end()

    def close(self) -> None:
        """End the zygote with all its descendants."""
        with self._lock:
            self._closed = True
            self._end()
            for zygote in self._retired:
                zygote.end()
            self._retired.clear()
            for directory in self._directories:
                # A zygote that was killed could not remove it.
                shutil.rmtree(directory, ignore_errors=True)
            self._directories.clear()

    def _start(self) -> _Zygote:
        # The zygote makes and removes it; if it is killed, its children keep working there until the pool is closed.
        directory = f"{tempfile.gettempdir()}/{TASK_DIRECTORY}{secrets.token_hex(8)}"
        self._directories.append(directory)
        plan = self._plan = msgspec.structs.replace(self._plan, directory=directory, worker=os.getpid())
        began_ns = time.time_ns()
        # Compiled files are as old as a second: with them, a quick change would not be seen.
        flags = ["-B"] if plan.names_files else []
        here, there = socket.socketpair()
        with there:
            process = subprocess.Popen(
                [sys.executable, *flags, "-c", BOOT.format("zygote", "main"), *plan.sys_path],
                stdin=there.fileno(),
                # Output of modules during their import belongs to the log.
                stdout=_stderr(),
                stderr=_stderr(),
                env=self._environment,
                start_new_session=True,
            )
        zygote = _Zygote(process, here)
        try:
            here.sendall(processes.message(plan))
            answer = processes.read_frame(here.fileno())
        except OSError:
            # It ended before it had read its plan.
            answer = None
        found = processes.Refusal("it ended at once") if answer is None else processes.from_zygote.decode(answer)
        before = () if isinstance(found, processes.Catalog) else self._sources
        self._sources = _stamps((*found.files, *before), since_ns=began_ns)
        if not isinstance(found, processes.Catalog):
            zygote.end()
            shutil.rmtree(self._directories.pop(), ignore_errors=True)
            raise ConfigurationError(
                f"imports: the tasks cannot be loaded in a child: {found.error}",
                field="imports",
                remedy="Name modules that a new interpreter can import; variables they need are named in pass_env.",
            )
        self.tasks = {entry.name: entry for entry in found.tasks}
        return zygote

    def _end(self) -> None:
        if self._zygote is not None:
            self._zygote.end()
            self._zygote = None


Stamp = tuple[int, int] | None
"""The time and the size of a file; None if it does not exist."""


def _stamps(files: Iterable[str], *, since_ns: int) -> dict[str, Stamp]:
    """Return how files look that were loaded after `since_ns`; what was changed meanwhile counts as changed."""
    found, now = {name: _stamp(name) for name in files}, time.time_ns()
    return {name: None if stamp is not None and since_ns <= stamp[0] <= now else stamp for name, stamp in found.items()}


def _stamp(name: str) -> Stamp:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _stderr() -> int:
    """Return the standard error of this process, or DEVNULL if it is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
