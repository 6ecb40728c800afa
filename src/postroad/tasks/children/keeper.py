"""A keeper: it forks one child at a time, watches it, and lets nothing of it live on.

It is a fork of the zygote, without threads. All orphans of its child become its own children, so that after the child's
end every process that is left is known and killed. When the worker's end of the socket closes, everything ends.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
from math import inf
from pathlib import Path
from typing import NoReturn

from postroad.tasks.children import kernel
from postroad.tasks.children.birth import Child, Deaths, StillBirth, bear
from postroad.tasks.children.child import Life
from postroad.tasks.children.line import Line, WorkerGone
from postroad.tasks.children.watching import Watch
from postroad.tasks.children.wire import Order, Ready

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
