"""One statement for many rows: a thread that runs it gives the interpreter away once, not once a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import apsw

_USUAL: Final = 10
_MOST: Final = 64


def run_many(
    connection: apsw.Connection, statement: str, rows: Sequence[tuple[Any, ...]], behind: tuple[Any, ...] = ()
) -> list[Any]:
    """Run the statement, whose `(?…)` stands for each row, and return its rows; `behind` are its further arguments."""
    if len(rows) == 1:
        return connection.execute(statement, rows[0] + behind).fetchall()
    found: list[Any] = []
    start = 0
    while left := len(rows) - start:
        # Up to a usual batch at once, then powers of two, so that few forms of a statement have to be prepared.
        size = left if left <= _USUAL else min(_MOST, 1 << left.bit_length() - 1)
        arguments = (*chain.from_iterable(rows[start : start + size]), *behind)
        found += connection.execute(_form(statement, size), arguments).fetchall()
        start += size
    return found


@lru_cache(maxsize=256)
def _form(statement: str, size: int) -> str:
    begin, end = statement.index("(?"), statement.index("?)") + 2
    return ", ".join([statement[:end]] + [statement[begin:end]] * (size - 1)) + statement[end:]
