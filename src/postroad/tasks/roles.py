"""What a worker does besides running tasks: small duties, each done again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from postroad.errors import PostroadError
from postroad.tasks.telling import tell


@dataclass(frozen=True, slots=True)
class Role:
    """A duty: what it is called, how often it is due in seconds, and what it does; it tells how much it did."""

    name: str
    every: float
    run_once: Callable[[], int]


class Rounds:
    """Does the duties of some roles on a thread of its own, each when it is due."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self._due = [(0.0, role) for role in roles]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._walk, name="postroad-roles", daemon=True)

    def once(self) -> int:
        """Do every duty now; how much was done."""
        return sum(_do(role) for _, role in self._due)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    def _walk(self) -> None:
        while not self._stopping.is_set():
            now = time.monotonic()
            for place, (due, role) in enumerate(self._due):
                if due <= now and not self._stopping.is_set():
                    _do(role)
                    self._due[place] = (time.monotonic() + role.every, role)
            next_due = min((due for due, _ in self._due), default=now + 60.0)
            self._stopping.wait(max(0.0, next_due - time.monotonic()))


def _do(role: Role) -> int:
    try:
        return role.run_once()
    except PostroadError as error:
        # A store that fails now may answer the next time; other duties must not wait for it.
        tell("worker_role_failed", role=role.name, error=str(error))
        return 0
