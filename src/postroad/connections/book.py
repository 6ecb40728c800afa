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
