"""The order of release: by timestamp across producers, while each producer's own sequence is kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Timed(Protocol):
    """Something a producer sent at a time."""

    @property
    def producer_id(self) -> str: ...

    @property
    def occurred_ms(self) -> int: ...


T = TypeVar("T", bound=Timed)


def merged(rows: Iterable[T]) -> list[T]:
    """The rows, which come in each producer's sequence, merged by timestamp.

    A producer whose clock steps back keeps its sequence: a row counts as no older than those before it.
    """
    newest: dict[str, int] = {}
    keyed = []
    for place, row in enumerate(rows):
        time = newest[row.producer_id] = max(newest.get(row.producer_id, 0), row.occurred_ms)
        keyed.append((time, row.producer_id, place, row))
    keyed.sort(key=lambda entry: entry[:3])
    return [row for *_, row in keyed]
