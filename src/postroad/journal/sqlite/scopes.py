"""Scopes: the numbers of tenants, apps, types and entities in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import apsw

from postroad.connections.fetching import one
from postroad.connections.transaction import Transaction
from postroad.journal.asking import Question
from postroad.journal.event import JournalEvent

_FIND: Final = "SELECT id FROM journal_scope WHERE name = ?"
_MAKE: Final = "INSERT INTO journal_scope (name) VALUES (?) RETURNING id"
_MOST_KNOWN: Final = 50_000


class Scopes:
    """Finds and makes numbers. A number is for ever, so what is committed is known without asking again."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def make(self, tx: Transaction, names: Sequence[str]) -> Mapping[str, int]:
        """The numbers of all names; those that have none get one."""
        known = self._known
        found = {name: known[name] for name in names if name in known}
        fresh = {name: _find_or_make(tx, name) for name in dict.fromkeys(names) if name not in found}
        if fresh:
            tx.after_commit(lambda: self._remember(fresh))
        return found | fresh

    def find(self, connection: apsw.Connection, names: Sequence[str]) -> list[int] | None:
        """The numbers of the names, or None when one of them never occurred."""
        numbers = []
        for name in names:
            number = self._known.get(name) or _find(connection, name)
            if number is None:
                return None
            numbers.append(number)
        return numbers

    def _remember(self, fresh: Mapping[str, int]) -> None:
        if len(self._known) + len(fresh) > _MOST_KNOWN:
            self._known = {}
        self._known.update(fresh)


def names_of(event: JournalEvent) -> tuple[str, str, str, str]:
    """The scopes of an event: its tenant, entity, app and type."""
    tenant = event.tenant_id
    return (
        tenant,
        f"{tenant}#{event.entity_type}#{event.entity_id}",
        f"{tenant}#APP#{event.app}",
        f"{tenant}#EVENT#{event.event_type}",
    )


def names_asked(question: Question, columns: Sequence[str]) -> list[str]:
    """The scopes that a question names, in the order of the columns."""
    tenant, entity = question.tenant, question.entity or ("", "")
    names = {
        "tenant": tenant,
        "entity": f"{tenant}#{entity[0]}#{entity[1]}",
        "app": f"{tenant}#APP#{question.app}",
        "kind": f"{tenant}#EVENT#{question.event_type}",
    }
    return [names[column] for column in columns]


def _find_or_make(tx: Transaction, name: str) -> int:
    found = _find(tx.connection, name)
    return int(one(tx.connection, _MAKE, (name,))[0]) if found is None else found


def _find(connection: apsw.Connection, name: str) -> int | None:
    row = one(connection, _FIND, (name,))
    return None if row is None else int(row[0])
