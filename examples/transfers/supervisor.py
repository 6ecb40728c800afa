"""Starts every role as a child process, kills some at random, and starts them again."""

from __future__ import annotations

import multiprocessing
import random
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from types import TracebackType

from examples.transfers import roles
from examples.transfers.names import CONSUMERS

_BETWEEN_KILLS = (0.2, 0.6)
_STOP_SECONDS = 20.0
# Children are forked from a small server that has the modules loaded: a new one is there at once.
_processes = multiprocessing.get_context("forkserver")


@dataclass(slots=True)
class Supervisor:
    """The children of one run."""

    dsn: str
    url: str
    dispatchers: int
    kills: int
    chance: random.Random
    killed: int = 0
    _children: list[tuple[str, BaseProcess]] = field(default_factory=list)
    _next_kill: float = 0.0

    def __enter__(self) -> Supervisor:
        _processes.set_forkserver_preload([roles.__name__])
        for role in (*["dispatcher"] * self.dispatchers, *CONSUMERS):
            self._children.append((role, self.start(role)))
        self._plan_kill()
        return self

    def start(self, role: str, number: int = 0) -> BaseProcess:
        """Start a role; `number` is how many transfers or routes it makes."""
        child = _processes.Process(target=roles.main, args=(role, self.dsn, self.url, number))
        child.start()
        return child

    def tend(self) -> None:
        """Kill somebody when it is time, and start whoever is gone."""
        if self.killed < self.kills and time.monotonic() >= self._next_kill:
            _, victim = self.chance.choice(self._children)
            victim.kill()
            victim.join()
            self.killed += 1
            self._plan_kill()
        for index, (role, child) in enumerate(self._children):
            if not child.is_alive():
                self._children[index] = (role, self.start(role))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for _, child in self._children:
            child.terminate()
        for _, child in self._children:
            child.join(_STOP_SECONDS)
            child.kill()
            child.join()

    def _plan_kill(self) -> None:
        self._next_kill = time.monotonic() + self.chance.uniform(*_BETWEEN_KILLS)
