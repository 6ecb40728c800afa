"""The fork guard: no SQLite connection is open while a process forks.

SQLite keeps its locks in a table of the process. A child that inherits it believes that it holds locks which it does
not hold, even through connections of its own. So every engine closes its file before a fork and opens it again in the
parent. Only a thread that forks in the middle of its own transaction cannot; its child must not open that file at all.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from postroad.errors import ConfigurationError


class Forkable(Protocol):
    """Something that lets go of its file while the process forks."""

    @property
    def path(self) -> Path: ...

    def before_fork(self) -> None:
        """Close the file once nobody uses it."""
        ...

    def after_fork_in_parent(self) -> None:
        """Open the file again."""
        ...

    def after_fork_in_child(self) -> Sequence[object]:
        """Refuse all further use, and name the connections that are still open and must never be finalised here."""
        ...


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()
_closed_for_fork: list[Forkable] = []
_inherited_open: set[Path] = set()


def inherited(path: Path) -> bool:
    """Whether this process was forked while its parent was writing to the file."""
    return path in _inherited_open


def mark_inherited(path: Path) -> None:
    """Remember in a child that the file is open behind its back."""
    _inherited_open.add(path)


def is_open(path: Path) -> bool:
    """Whether the embedded engine has this file open in this process."""
    return any(_is_same(resource.path, path) for resource in list(_open))


def guard(resource: Forkable) -> None:
    """Let the resource go through every fork from now on."""
    _open.add(resource)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()


def _before() -> None:
    _closed_for_fork[:] = list(_open)
    for resource in _closed_for_fork:
        resource.before_fork()


def _in_parent() -> None:
    while _closed_for_fork:
        _closed_for_fork.pop().after_fork_in_parent()


def _in_child() -> None:
    while _closed_for_fork:
        for connection in _closed_for_fork.pop().after_fork_in_child():
            # Closing it would drop the parent's locks: it must outlive this process.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


class OwnMemory(threading.Condition):
    """The lock of what lives in memory. A child that inherited it, and whoever comes after `close`, is refused.

    A child is refused before it waits for a lost owner; who waits while it is closed is woken and refused.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        super().__init__(self.lock)
        self._pid: int | None = os.getpid()

    def __enter__(self) -> bool:
        if os.getpid() != self._pid:
            raise self._refusal()
        entered = super().__enter__()
        if self._pid is None:
            # It was closed while this one waited for its turn.
            self.lock.release()
            raise self._refusal()
        return entered

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; `ConfigurationError` when it was closed meanwhile."""
        notified = super().wait(timeout)
        self.check()
        return notified

    def check(self) -> None:
        """Refuse who may not use this memory, or no longer."""
        if os.getpid() != self._pid:
            raise self._refusal()

    def close(self) -> None:
        """Refuse every use from now on; closing twice changes nothing."""
        if os.getpid() == self._pid:
            with self.lock:
                self._pid = None
                self.notify_all()

    def _refusal(self) -> ConfigurationError:
        if self._pid is None:
            return ConfigurationError("memory://: this backend is closed; open a new one with connect()")
        return ConfigurationError(
            "memory://: this backend was opened before fork(); a child opens its own with connect()",
            remedy="Open a backend in the child; what both must see belongs into a file (sqlite:///path).",
        )
