"""What a worker does besides running tasks: small jobs, each done again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from postroad.backoff import Backoff
from postroad.errors import PostroadError
from postroad.tasks.log import tell

_LEAST_PAUSE_SECONDS = 0.5
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Role:
    """A duty: what it is called, how often it is due in seconds, and what it does; it tells how much it did."""

    name: str
    every: float
    run_once: Callable[[], int]
    close: Callable[[], object] = lambda: None
    """Called when the role is over."""


@dataclass(slots=True)
class _Turn:
    """When a role is due next, and how often it failed in a row."""

    role: Role
    due: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    error: Exception | None = None
    """Why it failed the last time; None after a success."""

    def take(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Run the role once. One that raises runs again after a pause; a line is logged when it begins to fail."""
        try:
            done = self.role.run_once()
        except Exception as error:
            if is_over():
                # The store was closed meanwhile, and nobody waits for this any more.
                return 0
            # Whatever it was, it may not happen the next time, and the other roles must not wait for it.
            if self.error is None:
                tell("worker_role_failed", role=self.role.name, error=error)
            self.error = error
            self.due = time.monotonic() + max(_LEAST_PAUSE_SECONDS, self.backoff.next())
            return 0
        if self.error is not None:
            tell("worker_role_recovered", role=self.role.name, failures=self.backoff.failures)
            self.error = None
            self.backoff.reset()
        self.due = time.monotonic() + self.role.every
        return done


class RoleThreads:
    """Runs each role on a thread of its own, again whenever it is due: none waits for another.

    Args:
        roles: What is to be done.
        ended: Called when a thread ends although nobody stopped it; whoever left the `with` block then gets an error.
    """

    def __init__(self, roles: Sequence[Role], *, ended: Callable[[], object] = lambda: None) -> None:
        self._turns = [_Turn(role) for role in roles]
        self._ended = ended
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(turn,), name=f"postroad-{turn.role.name}", daemon=True)
            for turn in self._turns
        ]
        self._error: BaseException | None = None

    def once(self) -> int:
        """Run every role now and return how much was done; where nothing was, why the first role failed is raised."""
        done = sum(turn.take() for turn in self._turns)
        error = next((turn.error for turn in self._turns if turn.error is not None), None)
        if not done and error is not None:
            raise error
        return done

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping.set()
        # A long poll that is under way is not waited for: what it brings comes back by itself.
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for turn in self._turns:
            turn.role.close()
        if self._error is not None and error is None:
            raise thread_ended("the thread of a role", self._error)

    def _run(self, turn: _Turn) -> None:
        try:
            while not self._stopping.is_set():
                turn.take(self._stopping.is_set)
                self._stopping.wait(max(0.0, turn.due - time.monotonic()))
        except BaseException as error:
            self._error = error
            tell("worker_roles_ended", role=turn.role.name, error=error)
            self._ended()


def thread_ended(what: str, error: BaseException) -> PostroadError:
    """The error of a worker that cannot go on because one of its threads ended."""
    found = PostroadError(
        f"{what} ended: {type(error).__name__}: {error}",
        remedy="Start the worker again; POSTROAD_DEBUG=1 shows where it happened.",
    )
    found.__cause__ = error
    return found
