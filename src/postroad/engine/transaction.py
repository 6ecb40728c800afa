"""A transaction as the work inside it sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Protocol

import apsw


class Finishable(Protocol):
    """A wish that is fulfilled by the commit."""

    finished: bool


class Transaction:
    """One write transaction of the engine, shared by the work of several threads."""

    __slots__ = (
        "_after",
        "_before",
        "_undo",
        "channels",
        "committing",
        "connection",
        "durable",
        "leaves",
        "news",
        "requests",
    )

    def __init__(self, connection: apsw.Connection, *, requests: Sequence[Finishable] = (), leaves: int = 0) -> None:
        self.connection = connection
        self.leaves = leaves
        """How many quarters of the room that is kept for a full disk it leaves alone."""
        self.durable = False
        """Whether the work that runs now has to wait for the disk after the commit."""
        self.requests = requests
        self.news = 0
        """What was heard of other processes when it began."""
        self.committing = False
        self.channels: set[str] = set()
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self._undo: list[Callable[[], None]] = []

    def must_be_durable(self) -> None:
        """Let this work wait for the disk, though it was begun as if it need not."""
        self.durable = True

    def touch(self, channel: str) -> None:
        """After the commit, wake those who listen to the channel, in every process."""
        self.channels.add(channel)

    def before_commit(self, action: Callable[[], None]) -> None:
        """Do something within the transaction when all work is done."""
        self._before.append(action)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Do something that cannot fail once the transaction is committed."""
        self._after.append(action)

    def after_rollback(self, action: Callable[[], None]) -> None:
        """Take something back that lives outside the file when the transaction is not committed."""
        self._undo.append(action)

    def mark(self) -> tuple[int, int, int]:
        """Where the actions stand now, for `back_to`."""
        return len(self._before), len(self._after), len(self._undo)

    def back_to(self, mark: tuple[int, int, int]) -> None:
        """Forget the actions added since the mark, and take back what they were to take back."""
        before, after, undo = mark
        del self._before[before:]
        del self._after[after:]
        while len(self._undo) > undo:
            self._undo[-1]()
            self._undo.pop()

    def finish(self) -> None:
        """Do what was put off until all work is done."""
        for action in self._before:
            action()

    def committed(self) -> None:
        """Tell everybody that it is done. Interrupted, it is called again and goes on where it was."""
        while self._after:
            self._after[0]()
            del self._after[0]

    def rolled_back(self) -> None:
        """Take everything back. Interrupted, it is called again and goes on where it was."""
        while self._undo:
            self._undo[-1]()
            self._undo.pop()


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


def one(connection: apsw.Connection, statement: str, arguments: tuple[Any, ...] = ()) -> Any:
    """The first row, or None."""
    return connection.execute(statement, arguments).fetchone()


def every(connection: apsw.Connection, statement: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
    """All rows."""
    return connection.execute(statement, arguments).fetchall()


def text_of(column: str | bytes | None) -> str | None:
    """The text of a column that was read as bytes; what cannot be decoded shows its bytes."""
    return column.decode(errors="backslashreplace") if isinstance(column, bytes) else column


class Book(Protocol):
    """Numbers that are kept in memory and written once in each transaction that changes them."""

    def store(self, tx: Transaction) -> None:
        """Write what this transaction changed."""
        ...

    def committed(self, tx: Transaction) -> None:
        """What was stored is true."""
        ...

    def drop(self) -> None:
        """Forget everything: the transaction was rolled back."""
        ...


class Books:
    """All books of one file."""

    def __init__(self) -> None:
        self._books: list[Book] = []

    def keep(self, book: Book) -> None:
        """Have this one written too from now on."""
        self._books.append(book)

    def store(self, tx: Transaction) -> None:
        """Write what this transaction changed."""
        for book in self._books:
            book.store(tx)

    def committed(self, tx: Transaction) -> None:
        """What was stored is true."""
        for book in self._books:
            book.committed(tx)

    def drop(self) -> None:
        """Forget everything."""
        for book in self._books:
            book.drop()
