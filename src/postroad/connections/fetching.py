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
