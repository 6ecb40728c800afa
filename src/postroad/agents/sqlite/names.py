"""Agents by number: rows carry numbers, people and streams carry ids."""

from __future__ import annotations

from typing import Final

import apsw

from postroad.agents.rules import not_found
from postroad.engine import Transaction, one

_NUMBER: Final = "SELECT num FROM agent WHERE id = ?"
_ACTIVE: Final = "SELECT num FROM agent WHERE id = ? AND state = 'active'"
_ID: Final = "SELECT id FROM agent WHERE num = ?"
_NAME: Final = "INSERT INTO agent (id, state, created_ms, total, open) VALUES (?, 'named', 0, 0, 0)"
_REMEMBERED: Final = 10_000
_NEXT: Final = "UPDATE agent_counter SET next = next + ? RETURNING next"


def number(connection: apsw.Connection, agent_id: str) -> int | None:
    """The number of an id; None when nobody registered it or listens to it."""
    row = one(connection, _NUMBER, (agent_id,))
    return None if row is None else int(row[0])


def active(connection: apsw.Connection, agent_id: str) -> int:
    """The number of a registered agent."""
    row = one(connection, _ACTIVE, (agent_id,))
    if row is None:
        raise not_found(agent_id)
    return int(row[0])


def named(tx: Transaction, agent_id: str) -> int:
    """The number of an id, given to it now when it had none."""
    found = number(tx.connection, agent_id)
    if found is None:
        tx.connection.execute(_NAME, (agent_id,))
        return tx.connection.last_insert_rowid()
    return found


def next_places(tx: Transaction, count: int) -> int:
    """The first of so many numbers that were never given before."""
    row = one(tx.connection, _NEXT, (count,))
    return int(row[0]) - count


def channel(lane: int) -> str:
    """Where changes of a lane are heard."""
    return f"a{lane}"


class Ids:
    """The ids of numbers, remembered: neither ever changes."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, connection: apsw.Connection, num: int) -> str:
        """The id of a number."""
        found = self._known.get(num)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[num] = str(one(connection, _ID, (num,))[0])
        return found
