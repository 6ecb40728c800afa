"""Rows of a statement whose columns the caller knows."""

from __future__ import annotations

from typing import Any

import apsw


def one(connection: apsw.Connection, statement: str, arguments: tuple[Any, ...] = ()) -> Any:
    """The first row, or None."""
    return connection.execute(statement, arguments).fetchone()


def every(connection: apsw.Connection, statement: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
    """All rows."""
    return connection.execute(statement, arguments).fetchall()


def text_of(column: str | bytes | None) -> str | None:
    """The text of a column that was read as bytes; what cannot be decoded shows its bytes."""
    return column.decode(errors="backslashreplace") if isinstance(column, bytes) else column
