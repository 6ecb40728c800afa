"""What a worker does besides running tasks: small duties, each done again and again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from postroad.errors import PostroadError
from postroad.queues.backoff import Backoff
from postroad.tasks.telling import tell

_LEAST_PAUSE_SECONDS = 0.5
_chance = random.random


@dataclass(frozen=True, slots=True)
class Role:
    """A duty: what it is called, how often it is due in seconds, and what it does; it tells how much it did."""

    name: str
    every: float
    run_once: Callable[[], int]


@dataclass(slots=True)
class _Turn:
    """When a role is due next, and how often it failed in a row."""

    role: Role
    due: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    error: Exception | None = None
    """Why it failed the last time; None after a success."""

    def take(self) -> int:
        """Run the role once. One that raises runs again after a pause; a line is logged when it begins to fail."""
        try:
            done = self.role.run_once()
        except Exception as error:
            # Whatever it was, it may not happen the next time, and the other roles must not wait for it.
            if self.error is None:
                tell("worker_role_failed", role=self.role.name, error=f"{type(error).__name__}: {error}")
            self.error = error
            self.due = time.monotonic() + max(_LEAST_PAUSE_SECONDS, self.backoff.next(_chance()))
            return 0
        if self.error is not None:
            tell("worker_role_recovered", role=self.role.name, failures=self.backoff.failures)
            self.error = None
            self.backoff.reset()
        self.due = time.monotonic() + self.role.every
        return done


class Rounds:
    """Runs some roles on a thread of its own, each when it is due.

    Args:
        roles: What is to be done.
        ended: Called when the thread ends although nobody stopped it; whoever left the `with` block then gets an error.
    """

    def __init__(self, roles: Sequence[Role], *, ended: Callable[[], object] = lambda: None) -> None:
        self._turns = [_Turn(role) for role in roles]
        self._ended = ended
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postroad-roles", daemon=True)
        self._error: BaseException | None = None

    def once(self) -> int:
        """Run every role now and return how much was done; where nothing was, why the first role failed is raised."""
        done = sum(turn.take() for turn in self._turns)
        error = next((turn.error for turn in self._turns if turn.error is not None), None)
        if not done and error is not None:
            raise error
        return done

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise thread_ended("the thread of the roles", self._error)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._walk()
        except BaseException as error:
            self._error = error
            tell("worker_roles_ended", error=f"{type(error).__name__}: {error}")
            self._ended()

    def _walk(self) -> None:
        """Run the roles that are due, then wait for the next one."""
        now = time.monotonic()
        for turn in self._turns:
            if turn.due <= now and not self._stopping.is_set():
                turn.take()
        next_due = min((turn.due for turn in self._turns), default=now + 60.0)
        self._stopping.wait(max(0.0, next_due - time.monotonic()))


def thread_ended(what: str, error: BaseException) -> PostroadError:
    """The error of a worker that cannot go on because one of its threads ended."""
    found = PostroadError(
        f"{what} ended: {type(error).__name__}: {error}",
        remedy="Start the worker again; POSTROAD_DEBUG=1 shows where it happened.",
    )
    found.__cause__ = error
    return found
