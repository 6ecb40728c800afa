"""A transaction as the work inside it sees it."""

from __future__ import annotations

from collections.abc import Callable

import apsw


class MustBeDurable(Exception):
    """Raised by work that finds out that its commit has to wait for the disk; the engine runs it again that way."""


class Transaction:
    """One write transaction of the engine, shared by the work of several threads."""

    __slots__ = ("_after", "_undo", "channels", "committing", "connection", "durable", "interruption")

    def __init__(self, connection: apsw.Connection, *, durable: bool) -> None:
        self.connection = connection
        self.durable = durable
        self.committing = False
        self.interruption: BaseException | None = None
        self.channels: set[str] = set()
        self._after: list[Callable[[], None]] = []
        self._undo: list[Callable[[], None]] = []

    def must_be_durable(self) -> None:
        """Have this work committed with a sync, running it again if it was begun without."""
        if not self.durable:
            raise MustBeDurable

    def touch(self, channel: str) -> None:
        """After the commit, wake those who listen to the channel, in every process."""
        self.channels.add(channel)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Do something that cannot fail once the transaction is committed."""
        self._after.append(action)

    def after_rollback(self, action: Callable[[], None]) -> None:
        """Take something back that lives outside the file when the transaction is not committed."""
        self._undo.append(action)

    def committed(self) -> None:
        """Tell everybody that it is done."""
        for action in self._after:
            action()

    def rolled_back(self) -> None:
        """Take everything back."""
        for action in reversed(self._undo):
            action()
