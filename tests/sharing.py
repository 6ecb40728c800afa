"""What is made once: for all processes of a test run, or for all fixtures of one of them."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

_started: dict[str, tuple[Any, ExitStack]] = {}
_users: Counter[str] = Counter()


@contextmanager
def shared(name: str, start: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    """Give the same server to all who ask for this name: the first starts it, and the last ends it.

    A fixture that several conftests import is a fixture of its own in each of them, whatever its scope.
    """
    if name not in _started:
        stack = ExitStack()
        _started[name] = stack.enter_context(start()), stack
    _users[name] += 1
    try:
        yield _started[name][0]
    finally:
        _users[name] -= 1
        if not _users[name]:
            _started.pop(name)[1].close()


@contextmanager
def one_at_a_time(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Let one process at a time be in the block; the folder is the same for all of them."""
    own = factory.getbasetemp()
    shared_by_all = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (shared_by_all / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield shared_by_all


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder that the first process to ask fills; the others wait until it is full."""
    with one_at_a_time(factory, name) as shared_by_all:
        folder = shared_by_all / name
        if not folder.exists():
            being_made = factory.mktemp(name)
            make(being_made)
            being_made.rename(folder)
    return folder
