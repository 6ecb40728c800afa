"""The zygote: started by exec with a short environment, it imports the tasks once and forks keepers for a worker."""

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
import time
from math import inf
from pathlib import Path
from typing import NoReturn

from postroad.tasks.children import kernel
from postroad.tasks.children.child import Life
from postroad.tasks.children.functions import decode_plan, entry_of, find_tasks
from postroad.tasks.children.watch import Child, Deaths, StillBirth, Watch, bear
from postroad.tasks.children.wire import Catalog, Line, Order, Plan, Ready, Refusal, WorkerGone, message, read_frame

_TICK_MS = 1_000
_KILL_SECONDS = 5.0


class Keeper:
    """Serves one seat of a worker until the worker or the zygote is gone."""

    def __init__(self, life: Life, line: Line, directory: str, zygote: int) -> None:
        self._life = life
        self._line = line
        self._directory = directory
        self._zygote = zygote
        self._deaths = Deaths()
        self._child: Child | None = None
        self._widest = min((task.memory_limit or inf for task in life.tasks.definitions()), default=inf)

    def serve(self) -> NoReturn:
        """Run orders one after the other; ends with the process."""
        kernel.adopt_orphans()
        try:
            while True:
                self._serve_once()
        except (WorkerGone, StillBirth):
            pass
        finally:
            self._end()

    def _serve_once(self) -> None:
        if self._child is None:
            self._child = bear(self._life)
        self._line.tell(Ready(self._child.pid, os.getpid()))
        order = self._await_order(self._child)
        if order is not None:
            self._run(self._child, order)
        else:
            # It died while it waited, by whatever hand; the next one is as good.
            self._bury(self._child)

    def _await_order(self, child: Child) -> Order | None:
        events = select.poll()
        events.register(self._line, select.POLLIN)
        events.register(self._deaths.bell, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in events.poll(_TICK_MS)]
            if not ready:
                self._deaths.look_for_oom()
            if self._line.fileno() in ready:
                # A halt that comes now was meant for the order before, which has ended by itself.
                orders = [told for told in self._line.hear() if isinstance(told, Order)]
                if orders:
                    return orders[0]
            if self._deaths.bell in ready:
                self._deaths.heard()
                if child.has_ended():
                    return None
            if os.getppid() != self._zygote:
                raise WorkerGone

    def _run(self, child: Child, order: Order) -> None:
        directory = Path(self._directory, f"{os.getpid()}-{child.pid}-{child.served}")
        directory.mkdir(mode=0o700)
        try:
            watch = Watch(child, order, self._life, self._line, self._deaths, directory)
            report = watch.until_done()
        finally:
            _remove(directory)
        if watch.ended:
            self._child = None
            child.close()
        elif self._widest != inf and kernel.address_space_bytes(child.pid) > self._widest:
            # The next task may have a limit that this child has outgrown without it.
            self._bury(child)
        self._line.tell(report)

    def _bury(self, child: Child) -> None:
        self._child = None
        child.close()
        kernel.end_descendants(within=_KILL_SECONDS)

    def _end(self) -> NoReturn:
        if self._child is not None:
            kernel.kill_group(self._child.pid, signal.SIGKILL)
        kernel.end_descendants(within=_KILL_SECONDS)
        os._exit(0)


def _remove(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)


CONTROL = 0
_TICK_MS_OF_ZYGOTE = 500
_PARTING_SECONDS = 1.0


def main() -> None:
    """Serve the worker at the other end of standard input until it is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The worker hears these and decides; whoever signals a whole group must not end its children first.
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(CONTROL))
    os.dup2(os.open(os.devnull, os.O_RDONLY), CONTROL)
    data = read_frame(control.fileno())
    if data is None:
        return
    plan = decode_plan(data)
    try:
        tasks = find_tasks(plan)
        catalog = Catalog(tuple(entry_of(definition) for definition in tasks.definitions()))
    except Exception as error:
        control.sendall(message(Refusal(f"{type(error).__name__}: {error}")))
        return
    control.sendall(message(catalog))
    if any(inspect.iscoroutinefunction(definition.function) for definition in tasks.definitions()):
        # Once here, and not in each child.
        import asyncio  # noqa: F401
    life = Life(
        tasks=tasks,
        plan=data,
        sys_path=plan.sys_path,
        child_reuse=plan.child_reuse,
        max_output_bytes=plan.max_output_bytes,
    )
    Zygote(plan, life, control).serve()


class Zygote:
    """Forks a keeper for each socket it is sent, and kills what a dead keeper leaves behind."""

    def __init__(self, plan: Plan, life: Life, control: socket.socket) -> None:
        self._plan = plan
        self._life = life
        self._control = control
        self._keepers: set[int] = set()

    def serve(self) -> None:
        """Serve until the worker is gone."""
        kernel.adopt_orphans()
        _prepare_for_children()
        events = select.poll()
        events.register(self._control, select.POLLIN)
        try:
            while os.getppid() == self._plan.worker:
                if events.poll(_TICK_MS_OF_ZYGOTE) and not self._hear():
                    break
                self._bury()
        finally:
            self._end()

    def _hear(self) -> bool:
        """Fork a keeper for each socket that came; False when the worker is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except OSError:
            return False
        for descriptor in descriptors:
            self._fork_keeper(descriptor)
            os.close(descriptor)
        return bool(data)

    def _fork_keeper(self, descriptor: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        zygote = os.getpid()
        pid = os.fork()
        if pid:
            self._keepers.add(pid)
            return
        self._control.close()
        Keeper(self._life, Line(socket.socket(fileno=descriptor)), self._plan.directory, zygote).serve()

    def _bury(self) -> None:
        """Reap keepers that ended, and kill what came to us from them."""
        ended = False
        while pid := _reap():
            ended = True
            self._keepers.discard(pid)
        if ended:
            for orphan in set(kernel.descendants(os.getpid())) - self._spared():
                kernel.kill(orphan, signal.SIGKILL)

    def _spared(self) -> set[int]:
        return self._keepers.union(*(kernel.descendants(keeper) for keeper in self._keepers))

    def _end(self) -> None:
        """Let keepers end by themselves, and kill what is left after a second."""
        self._control.close()
        deadline = time.monotonic() + _PARTING_SECONDS
        while self._keepers and time.monotonic() < deadline:
            self._bury()
            time.sleep(0.005)
        kernel.end_descendants(within=_KILL_SECONDS)
        shutil.rmtree(self._plan.directory, ignore_errors=True)


def _prepare_for_children() -> None:
    """Do once what every child would have to do: what it prints is seen at once, and so is where it crashed."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # made by this interpreter
    faulthandler.enable(file=2)
    gc.collect()
    gc.freeze()


def _reap() -> int:
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0
