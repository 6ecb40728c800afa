"""Comparing what is too much to keep: sums of hashes tell which few of very many things need a closer look."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import Any, Final

_BUCKETS: Final = 512
_MASK: Final = (1 << 64) - 1


class Balance:
    """Compares how often things occur on two sides, in memory that does not grow with them.

    In the first reading each thing adds its hash to a sum on the one side, and takes it away on the other: where a sum
    is not zero, something in its bucket occurs more often on one side. In the second reading the things of these
    buckets are counted one by one. A group that has nothing at all on the right side is not compared.
    """

    def __init__(self) -> None:
        self._sums: dict[str, array[int]] = defaultdict(lambda: array("Q", bytes(8 * _BUCKETS)))
        self._compared: set[str] = set()
        self._uneven: dict[str, set[int]] | None = None
        self._pairs: dict[tuple[str, Hashable], list[int]] = defaultdict(lambda: [0, 0])

    def left(self, group: str, thing: Hashable) -> None:
        self._count(group, thing, 1)

    def right(self, group: str, thing: Hashable) -> None:
        self._compared.add(group)
        self._count(group, thing, -1)

    def _count(self, group: str, thing: Hashable, sign: int) -> None:
        number = hash((thing, group))
        bucket = number % _BUCKETS
        if self._uneven is None:
            sums = self._sums[group]
            sums[bucket] = (sums[bucket] + sign * number) & _MASK
        elif bucket in self._uneven.get(group, ()):
            self._pairs[group, thing][sign < 0] += 1

    def look_closer(self) -> bool:
        """Start the second reading; return whether it is needed."""
        compared = ((group, self._sums[group]) for group in self._compared)
        uneven = {group: {at for at, total in enumerate(sums) if total} for group, sums in compared}
        self._uneven = {group: buckets for group, buckets in uneven.items() if buckets}
        return bool(self._uneven)

    def pairs(self) -> Iterator[tuple[str, Any, int, int]]:
        """Yield group, thing and how often it occurs left and right, for all that may differ."""
        for (group, thing), (left, right) in self._pairs.items():
            yield group, thing, left, right


class Repeats:
    """Finds which of very many things occur twice; it keeps eight bytes for each."""

    def __init__(self) -> None:
        self._hashes = [array("q") for _ in range(_BUCKETS)]

    def add(self, thing: Hashable) -> None:
        number = hash(thing)
        self._hashes[number % _BUCKETS].append(number)

    def found(self) -> set[int]:
        """Return the hashes that occur more than once."""
        repeated: set[int] = set()
        for bucket in self._hashes:
            numbers = sorted(bucket)
            repeated.update(one for one, other in pairwise(numbers) if one == other)
        return repeated
