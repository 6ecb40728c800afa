"""Scopes: the numbers of tenants, apps, types and entities in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import apsw

from postroad.connections.fetching import one
from postroad.connections.many import run_many
from postroad.connections.transaction import Transaction
from postroad.journal.asking import Question
from postroad.journal.event import JournalEvent

_FIND: Final = "SELECT id FROM journal_scope WHERE name = ?"
_MAKE: Final = "INSERT INTO journal_scope (name) VALUES (?) ON CONFLICT DO NOTHING RETURNING id, name"
_MOST_KNOWN: Final = 50_000


class Scopes:
    """Finds and makes numbers. A number is for ever, so what is committed is known without asking again."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def make(self, tx: Transaction, names: Iterable[str]) -> Callable[[str], int]:
        """What gives the number of each of these names; those that have none get one."""
        known = self._known
        unknown = {name for name in names if name not in known}
        if not unknown:
            return known.__getitem__
        fresh = _made(tx.connection, sorted(unknown))
        tx.after_commit(lambda: self._remember(fresh))
        return lambda name: known.get(name) or fresh[name]

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
        name_of_kind(tenant, event.event_type),
    )


def name_of_kind(tenant: str, event_type: str | None) -> str:
    """The scope of a type within a tenant."""
    return f"{tenant}#EVENT#{event_type}"


def names_asked(question: Question, columns: Sequence[str]) -> list[str]:
    """The scopes that a question names, in the order of the columns."""
    tenant, entity = question.tenant, question.entity or ("", "")
    names = {
        "tenant": tenant,
        "entity": f"{tenant}#{entity[0]}#{entity[1]}",
        "app": f"{tenant}#APP#{question.app}",
        "kind": name_of_kind(tenant, question.event_type),
    }
    return [names[column] for column in columns]


def _made(connection: apsw.Connection, names: Sequence[str]) -> dict[str, int]:
    """The numbers of names that are not known here: most are new, some were made by another process."""
    made = {name: number for number, name in run_many(connection, _MAKE, [(name,) for name in names])}
    return made | {name: one(connection, _FIND, (name,))[0] for name in names if name not in made}


def _find(connection: apsw.Connection, name: str) -> int | None:
    row = one(connection, _FIND, (name,))
    return None if row is None else int(row[0])
