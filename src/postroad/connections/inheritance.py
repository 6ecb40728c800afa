"""The fork guard: what a forked child inherits of an open file must never be used, nor closed."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol


class Inheritable(Protocol):
    """Something that must be abandoned in a forked child."""

    def abandon(self) -> list[object]:
        """Refuse all further use, and name the objects that must never be finalised here."""
        ...


_open: weakref.WeakSet[Inheritable] = weakref.WeakSet()


def guard(resource: Inheritable) -> None:
    """Abandon the resource in every child forked from now on."""
    _open.add(resource)


def _abandon_all() -> None:
    for resource in list(_open):
        for kept in resource.abandon():
            # Closing an inherited SQLite connection would drop the parent's locks: it must outlive this process.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    _open.clear()


os.register_at_fork(after_in_child=_abandon_all)
