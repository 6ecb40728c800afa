"""What the parts of the file keep in memory between transactions."""

from __future__ import annotations

from typing import Protocol

from postroad.connections.transaction import Transaction


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
