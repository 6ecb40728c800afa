"""A check that a handler may see an event twice: it runs twice at once and twice in a row on a real database."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from postroad.connections import Caller, in_transaction, marked
from postroad.inbox import DomainEvent, Inbox

Handler = Callable[[DomainEvent, Any], Any]
Snapshot = Mapping[str, Counter[str]]
_ROWS = "SELECT * FROM {table}"
_TABLES = {
    "postgresql": """
SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables
 WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema')""",
    "sqlite": "SELECT '\"' || replace(name, '\"', '\"\"') || '\"' FROM sqlite_master WHERE type = 'table'",
}


class _Undone(Exception):
    """Rolls a transaction back."""


def assert_idempotent(
    handler: Handler, event: DomainEvent, *, inbox: Inbox | None = None, tables: Sequence[str] = ()
) -> None:
    """Fail if a second run of the handler changes rows that the first one left.

    The handler runs as a consumer runs it, in transactions of the inbox, but without the inbox's check of the event id.

    Args:
        handler: The function under test; it gets the event and the connection.
        event: The event to handle.
        inbox: The inbox whose database is used; by default, an empty SQLite file.
        tables: The tables to compare, by default all of the database. Without an inbox, a table may also be given as
            its `CREATE TABLE` statement, which is run first.

    Raises:
        AssertionError: A second run changed rows or raised an error; the text names the tables.

    Example:
        assert_idempotent(book, event, tables=["CREATE TABLE ledger (id TEXT PRIMARY KEY, amount INTEGER)"])
    """
    with _database(inbox, tables) as (database, named):
        once = _undone(database, handler, event, named)
        at_once = _twice_at_once(database, handler, event, named)
        grown = [name for name in once if at_once[name].total() != once[name].total()]
        assert not grown, f"two runs at once left more or fewer rows than one in {_listed(grown)}"
        _run(database, handler, event)
        in_a_row = _look(database, named)
        changed = [name for name in at_once if in_a_row[name] != at_once[name]]
        assert not changed, f"a second run of the handler changed rows of {_listed(changed)}"


@contextmanager
def _database(inbox: Inbox | None, tables: Sequence[str]) -> Iterator[tuple[Inbox, Sequence[str]]]:
    if inbox is not None:
        yield inbox, tables
        return
    with tempfile.TemporaryDirectory(prefix="postroad-") as directory:
        with Inbox.sqlite(Path(directory) / "idempotence.db") as made:
            made.init()
            statements = [table for table in tables if table.lstrip().upper().startswith("CREATE ")]
            with made.transaction() as connection:
                for statement in statements:
                    connection.execute(statement)
            yield made, [table for table in tables if table not in statements]


def _undone(inbox: Inbox, handler: Handler, event: DomainEvent, tables: Sequence[str]) -> Snapshot:
    """Return what one run leaves, and roll it back."""
    found: Snapshot = {}
    try:
        with inbox.transaction() as connection:
            handler(event, connection)
            found = _snapshot(in_transaction(connection), tables)
            raise _Undone
    except _Undone:
        return found


def _twice_at_once(inbox: Inbox, handler: Handler, event: DomainEvent, tables: Sequence[str]) -> Snapshot:
    together = threading.Barrier(2)

    def run() -> bool:
        together.wait()
        try:
            _run(inbox, handler, event)
        except Exception:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        done = [each.result() for each in [pool.submit(run), pool.submit(run)]]
    if not all(done):
        # The run that failed is repeated, as a message is redelivered.
        _run(inbox, handler, event)
    return _look(inbox, tables)


def _run(inbox: Inbox, handler: Handler, event: DomainEvent) -> None:
    try:
        with inbox.transaction() as connection:
            handler(event, connection)
    except Exception as error:
        raise AssertionError(f"a second run of the handler raised {type(error).__name__}: {error}") from error


def _look(inbox: Inbox, tables: Sequence[str]) -> Snapshot:
    with inbox.transaction() as connection:
        return _snapshot(in_transaction(connection), tables)


def _snapshot(caller: Caller, tables: Sequence[str]) -> Snapshot:
    names = list(tables) or [row[0] for row in caller.rows(marked(_TABLES[caller.dialect], caller), ())]
    return {name: Counter(map(repr, caller.rows(_ROWS.format(table=name), ()))) for name in names}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(sorted(names))
