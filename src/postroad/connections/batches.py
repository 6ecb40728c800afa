"""Batches of at most so many entries and bytes: each entry has its outcome, and those of one key keep their order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from postroad.backoff import CHANCE
from postroad.errors import HeldBack, PostroadError, TransportError, Unavailable

T = TypeVar("T")
ATTEMPTS = 5
_FIRST_PAUSE = 0.1
_LOOK_AHEAD = 2_000


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """What goes into a batch. Entries of one `key` travel one after another, never two in one call."""

    content: T
    size: int = 0
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """An entry that failed through no fault of its own and may be tried again."""

    error: PostroadError


R = TypeVar("R")
Call = Callable[[list[T]], "Sequence[R | Again | PostroadError]"]


def deliver(
    entries: Sequence[Entry[T]], call: Call[T, R], *, most: int, most_bytes: int, attempts: int = ATTEMPTS
) -> list[R | PostroadError]:
    """Call with batches until every entry has its result or its error, in the order of `entries`.

    A call that fails as a whole ends it: what was not sent yet is `Unavailable`, or `HeldBack` behind a failed one of
    its key. An error that is nobody's outage is raised when nothing was sent before.
    """
    run: _Run[T, R] = _Run(entries, most, most_bytes, attempts)
    while run.waiting:
        batch = run.take()
        try:
            outcomes = call([entries[index].content for index in batch])
        except PostroadError as error:
            if not isinstance(error, TransportError) and not run.results:
                raise
            run.stop(batch, error)
        else:
            run.settle(batch, outcomes)
    return [run.results[index] for index in range(len(entries))]


class _Run(Generic[T, R]):
    def __init__(self, entries: Sequence[Entry[T]], most: int, most_bytes: int, attempts: int) -> None:
        self.waiting = list(range(len(entries)))
        self.results: dict[int, R | PostroadError] = {}
        self._entries = entries
        self._most, self._most_bytes, self._attempts = most, most_bytes, attempts
        self._failures: dict[int, int] = {}

    def take(self) -> list[int]:
        """The next batch, in order. An entry that does not fit leaves the later ones of its key where they are."""
        batch: list[int] = []
        size = 0
        keys: set[str] = set()
        for index in islice(self.waiting, _LOOK_AHEAD):
            entry = self._entries[index]
            if entry.key in keys:
                continue
            if batch and size + entry.size > self._most_bytes:
                break
            batch.append(index)
            size += entry.size
            if entry.key is not None:
                keys.add(entry.key)
            if len(batch) == self._most:
                break
        taken = set(batch)
        self.waiting = [index for index in self.waiting if index not in taken]
        return batch

    def settle(self, batch: Sequence[int], outcomes: Sequence[R | Again | PostroadError]) -> None:
        again = [index for index, outcome in zip(batch, outcomes, strict=True) if not self._settled(index, outcome)]
        if again:
            # In front of all others, so that nothing of its key overtakes it.
            self.waiting[:0] = again
            pause(max(self._failures[index] for index in again))

    def _settled(self, index: int, outcome: R | Again | PostroadError) -> bool:
        if isinstance(outcome, Again):
            failures = self._failures[index] = self._failures.get(index, 0) + 1
            if failures < self._attempts:
                return False
            outcome = outcome.error
        self.results[index] = outcome
        if isinstance(outcome, PostroadError):
            self._hold_back(index, outcome)
        return True

    def _hold_back(self, failed: int, error: PostroadError) -> None:
        key = self._entries[failed].key
        behind = [] if key is None else [index for index in self.waiting if self._entries[index].key == key]
        for index in behind:
            self.results[index] = held_back(key, error)
        if behind:
            self.waiting = [index for index in self.waiting if index not in self.results]

    def stop(self, batch: Sequence[int], error: PostroadError) -> None:
        for index in batch:
            self.results[index] = error
            self._hold_back(index, error)
        for index in self.waiting:
            self.results[index] = Unavailable(f"not sent, because an earlier call failed: {error}")
        self.waiting = []


def held_back(key: str | None, error: PostroadError) -> HeldBack:
    """The error of an entry that waits for an earlier one of its key."""
    return HeldBack(f"not sent: an earlier one of {key!r} failed: {error}")


def pause(failures: int) -> None:
    """Wait a little longer after each failure, by chance, so that many do not come back at once."""
    time.sleep(_FIRST_PAUSE * 2 ** (failures - 1) * CHANCE.uniform(0.5, 1.0))
