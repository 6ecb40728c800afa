"""The keys of a while, in memory that stays the same however many come and go."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable


class RecentKeys:
    """At most so many keys, each until its time; the oldest go first.

    A set and a line of marks instead of an ordered dict: a dict keeps the places of what it lost and grows by them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: set[Hashable] = set()
        self._line: deque[Hashable] = deque()
        self._times: deque[float] = deque()
        self._void: Counter[Hashable] = Counter()
        """How many marks of a key, its oldest ones, count no more: it was forgotten or marked again."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Hashable, until: float) -> None:
        """Keep the key until then; times never decrease from one call to the next."""
        self.discard(key)
        self._keys.add(key)
        self._line.append(key)
        self._times.append(until)
        while len(self._keys) > self._most:
            self._drop_first()
        if len(self._line) > 2 * self._most:
            self._tidy()

    def discard(self, key: Hashable) -> None:
        """Forget the key if it is there."""
        if key in self._keys:
            self._keys.remove(key)
            self._void[key] += 1

    def expire(self, now: float) -> None:
        """Forget the keys whose time has come."""
        while self._times and self._times[0] <= now:
            self._drop_first()

    def _drop_first(self) -> None:
        key = self._line.popleft()
        self._times.popleft()
        if not self._is_void(key):
            self._keys.remove(key)

    def _is_void(self, key: Hashable) -> bool:
        """Whether this next mark of the key counts no more."""
        left = self._void.get(key)
        if left is None:
            return False
        if left == 1:
            del self._void[key]
        else:
            self._void[key] = left - 1
        return True

    def _tidy(self) -> None:
        """Drop the marks that count no more."""
        alive = [(key, until) for key, until in zip(self._line, self._times, strict=True) if not self._is_void(key)]
        self._line = deque(key for key, _ in alive)
        self._times = deque(until for _, until in alive)
