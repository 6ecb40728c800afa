"""A database of the user's own, as outbox and inbox see it: short transactions of statements with bound values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[Any, ...]


class Session(Protocol):
    """One transaction. A statement has a `?` for each of its values."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """What the statement returns."""
        ...

    def change(self, statement: str, values: Sequence[object] = ()) -> int:
        """How many rows the statement changed."""
        ...

    def script(self, statements: str) -> None:
        """Run several statements that have no values."""
        ...


class Database(Protocol):
    """Opens connections when they are needed, keeps a few, and translates the driver's errors."""

    def transaction(self) -> AbstractContextManager[Session]:
        """A transaction that commits at the end of the block; an exception rolls it back."""
        ...

    def reading(self) -> AbstractContextManager[Session]:
        """A transaction that only looks."""
        ...

    def create(self) -> None:
        """Make the file where the database is one and is missing; a server has its databases made by others."""
        ...

    def close(self) -> None:
        """Close what is open. A closed database opens again when it is used."""
        ...
