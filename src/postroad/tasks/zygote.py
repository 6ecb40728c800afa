"""The zygote: it is started with a short environment, imports the tasks once, and forks monitors for a worker.

A monitor has no threads. It forks one child at a time, watches it, and kills everything that the child leaves behind:
orphans of the child become children of the monitor, so every process that is left is known. When the worker's end of
the socket closes, everything ends.
"""

from __future__ import annotations

import faulthandler
import gc
import inspect
import os
import select
import shutil
import signal
import socket
import sys
import sysconfig
import time
import traceback
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NoReturn

import msgspec

from postroad.errors import describe_import
from postroad.tasks import processes
from postroad.tasks.processes import Link, Order, PeerGone, Plan, ToMonitor, to_monitor
from postroad.tasks.task_child import ChildSetup, entry_of, find_tasks, prepare_for_children, rehearse
from postroad.tasks.watch import Child, ChildExits, ChildNotReady, Watch, fork_child, read_some

_TICK_MS = 1_000
_KILL_SECONDS = 5.0
# Some file systems store times in steps of two seconds.
_LONGEST_TICK_NS = 3_000_000_000


class Monitor:
    """Runs the children of one slot of a worker until the worker or the zygote ends."""

    def __init__(self, setup: ChildSetup, link: Link[ToMonitor], zygote: int) -> None:
        self._setup = setup
        self._link = link
        self._zygote = zygote
        self._exits = ChildExits()
        self._events = select.poll()
        self._events.register(link, select.POLLIN)
        self._events.register(self._exits.readable, select.POLLIN)
        self._child: Child | None = None
        self._announced = False
        """Whether the worker knows that the child waits."""
        self._directory: _Directory | None = None
        """The directory of the last order, if nothing touched it."""
        self._widest = min((task.memory_limit or inf for task in setup.tasks.definitions()), default=inf)

    def serve(self) -> NoReturn:
        processes.adopt_orphans()
        self._setup = prepare_for_children(self._setup)
        try:
            while True:
                if self._child is None:
                    self._child, self._announced = fork_child(self._setup), False
                if not self._announced:
                    self._link.send(processes.Ready(self._child.pid, os.getpid()))
                order = self._await_order(self._child)
                if order is not None:
                    self._run(self._child, order)
                else:
                    # It died while it waited; the next child takes its place.
                    self._end_child(self._child)
        except (PeerGone, ChildNotReady):
            pass
        finally:
            self._end()

    def _await_order(self, child: Child) -> Order | None:
        while True:
            ready = [descriptor for descriptor, _ in self._events.poll(_TICK_MS)]
            if not ready:
                self._exits.look_for_oom()
            if self._link.fileno() in ready:
                # A halt that arrives now was meant for the previous order, which has ended.
                orders = [received for received in self._link.receive() if isinstance(received, Order)]
                if orders:
                    return orders[0]
            if self._exits.readable in ready:
                read_some(self._exits.readable)
                if child.has_ended():
                    return None
            if os.getppid() != self._zygote:
                raise PeerGone

    def _run(self, child: Child, order: Order) -> None:
        if self._directory is None:
            path = f"{self._setup.plan.directory}/{os.getpid()}-{child.pid}-{child.served}"
            self._directory = _Directory(path)
        order = msgspec.structs.replace(order, directory=self._directory.begin())
        watch = Watch(child, order, self._setup, self._link, self._exits)
        try:
            report = watch.until_done()
        finally:
            if watch.ended or not self._directory.is_untouched():
                self._remove_directory()
        if watch.ended:
            self._child = None
            child.close()
        elif self._widest != inf and processes.address_space_bytes(child.pid) > self._widest:
            # The next task may have a memory limit below what this child uses.
            self._end_child(child)
        self._announced = self._child is not None
        # The worker may have the next order for a child that waits, so it gets to know both at once.
        self._link.send(report, *([processes.Ready(child.pid, os.getpid())] if self._announced else []))

    def _remove_directory(self) -> None:
        if self._directory is not None:
            self._directory.remove()
            self._directory = None

    def _end_child(self, child: Child) -> None:
        self._child = None
        self._remove_directory()
        child.close()
        processes.end_descendants(within=_KILL_SECONDS)

    def _end(self) -> NoReturn:
        self._remove_directory()
        if self._child is not None:
            processes.kill_group(self._child.pid, signal.SIGKILL)
        processes.end_descendants(within=_KILL_SECONDS)
        os._exit(0)


class _Directory:
    def __init__(self, path: str) -> None:
        self.path = path
        # A Path would touch many more pages, of which a monitor has to make copies after each fork.
        os.mkdir(path, 0o700)  # noqa: PTH102
        self._made = self._look()
        self._shows_changes = False

    def begin(self) -> str:
        # A change within one tick of the file system's clock would not show another time.
        self._shows_changes = time.time_ns() - self._made[-1] > _LONGEST_TICK_NS
        return self.path

    def is_untouched(self) -> bool:
        """Return whether it is empty, and never was anything else: as good as a new one."""
        try:
            return self._look() == self._made and (self._shows_changes or not os.listdir(self.path))  # noqa: PTH208
        except OSError:
            return False

    def remove(self) -> None:
        try:
            os.rmdir(self.path)  # noqa: PTH106
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)

    def _look(self) -> tuple[int, ...]:
        found = os.lstat(self.path)
        return found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_ctime_ns


CONTROL = 0
_ZYGOTE_TICK_MS = 500
_PARTING_SECONDS = 1.0


def main() -> None:
    """Serve the worker at the other end of standard input until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The worker handles these; a signal to the whole group must not end its children first.
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(CONTROL))
    os.dup2(os.open(os.devnull, os.O_RDONLY), CONTROL)
    data = processes.read_frame(control.fileno())
    if data is None:
        return
    plan = msgspec.msgpack.decode(data, type=Plan)
    Path(plan.directory).mkdir(mode=0o700)
    try:
        _serve(plan, data, control)
    except (BrokenPipeError, ConnectionResetError):
        # The worker died during the imports.
        return
    finally:
        shutil.rmtree(plan.directory, ignore_errors=True)


def _serve(plan: Plan, data: bytes, control: socket.socket) -> None:
    try:
        tasks = find_tasks(plan)
        entries = tuple(entry_of(definition) for definition in tasks.definitions())
        catalog = processes.Catalog(entries, source_files() if plan.names_files else ())
        for definition in tasks.definitions():
            # Once here, and not in each child.
            if definition.signature is not None:
                definition.signature.prepare()
    except Exception as error:
        files = source_files(error) if plan.names_files else ()
        control.sendall(processes.message(processes.Refusal(describe_import(error), files)))
        return
    control.sendall(processes.message(catalog))
    if any(inspect.iscoroutinefunction(definition.function) for definition in tasks.definitions()):
        # Once here, and not in each child.
        import asyncio  # noqa: F401
    Zygote(ChildSetup(tasks, plan, data), control).serve()


def source_files(error: BaseException | None = None) -> tuple[str, ...]:
    """Return the files of the application that are loaded, and those that an error names; libraries are left out."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    libraries.add(str(Path(__file__).parents[1]))
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    if error is not None:
        found |= {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
        found.add(getattr(error, "filename", None))
    files = (str(Path(name).absolute()) for name in found if isinstance(name, str) and name.endswith(".py"))
    return tuple(sorted(name for name in files if not any(name.startswith(f"{each}{os.sep}") for each in libraries)))


class Zygote:
    """Forks a monitor for each socket it receives, and kills what a dead monitor leaves behind."""

    def __init__(self, setup: ChildSetup, control: socket.socket) -> None:
        self._setup = setup
        self._control = control
        self._monitors: set[int] = set()

    def serve(self) -> None:
        processes.adopt_orphans()
        # Do once what every child would have to do: flush each line, and print where it crashed.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # made by this interpreter
        faulthandler.enable(file=2)
        rehearse()
        gc.collect()
        gc.freeze()
        events = select.poll()
        events.register(self._control, select.POLLIN)
        try:
            while os.getppid() == self._setup.plan.worker:
                if events.poll(_ZYGOTE_TICK_MS) and not self._receive():
                    break
                self._reap_monitors()
        finally:
            self._end()

    def _receive(self) -> bool:
        """Fork a monitor for each socket that arrived; return False if the worker is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except OSError:
            return False
        for descriptor in descriptors:
            self._fork_monitor(descriptor)
            os.close(descriptor)
        return bool(data)

    def _fork_monitor(self, descriptor: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        zygote = os.getpid()
        pid = os.fork()
        if pid:
            self._monitors.add(pid)
            return
        self._control.close()
        Monitor(self._setup, Link(socket.socket(fileno=descriptor), to_monitor), zygote).serve()

    def _reap_monitors(self) -> None:
        """Reap monitors that ended, and kill the processes they left to us."""
        ended = False
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                ended = True
                self._monitors.discard(pid)
        if ended:
            for orphan in processes.descendants(os.getpid(), spare=self._monitors):
                processes.kill(orphan, signal.SIGKILL)

    def _end(self) -> None:
        """Wait a second for monitors to end by themselves, then kill what is left."""
        self._control.close()
        deadline = time.monotonic() + _PARTING_SECONDS
        while self._monitors and time.monotonic() < deadline:
            self._reap_monitors()
            time.sleep(0.005)
        processes.end_descendants(within=_KILL_SECONDS)
