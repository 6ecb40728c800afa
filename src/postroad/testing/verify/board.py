"""The board: shared memory in which client processes announce what they do, and the supervisor what they may do."""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from pathlib import Path

_WORDS = 4
_STATE, _DONE, _ALLOWED = range(3)


class State(IntEnum):
    """What a process announces about itself."""

    STARTING = 0
    WORKING = 1
    HOLDING = 2
    """It is at work and holds a delivery."""


class Board:
    """One file in shared memory with a row for each process: its state, what it has sent, and what it may send.

    A row outlives the process, so a process that is started again goes on counting.
    """

    def __init__(self, path: Path, rows: int) -> None:
        size = (rows + 1) * _WORDS * 4
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._words = memoryview(mmap.mmap(descriptor, size)).cast("I")
        finally:
            os.close(descriptor)

    @property
    def stopping(self) -> bool:
        """Whether every process must end."""
        return self._words[0] != 0

    def stop(self) -> None:
        """Ask every process to end."""
        self._words[0] = 1

    def state(self, row: int) -> State:
        """Return what the process of this row announced last."""
        return State(self._words[self._at(row) + _STATE])

    def announce(self, row: int, state: State) -> None:
        """Announce what the process of this row does."""
        self._words[self._at(row) + _STATE] = state

    def done(self, row: int) -> int:
        """Return how many messages this row has sent."""
        return self._words[self._at(row) + _DONE]

    def count(self, row: int) -> None:
        """Count one more message that this row has sent."""
        self._words[self._at(row) + _DONE] += 1

    def allowed(self, row: int) -> int:
        """Return how many messages this row may send by now."""
        return self._words[self._at(row) + _ALLOWED]

    def allow(self, row: int, messages: int) -> None:
        """Let this row send so many messages in all."""
        self._words[self._at(row) + _ALLOWED] = messages

    @staticmethod
    def _at(row: int) -> int:
        return (row + 1) * _WORDS
