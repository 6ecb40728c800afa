"""Bugs of the inbox and the outbox: effects made twice or not at all, events lost or out of order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from postroad.testing.mutants.mutant import Mutant, rewrite, slow_handlers, wrap

_WINDOW_SECONDS = 0.05
_SLOW = 0.03
_SLOW_SECONDS = 4.0


def _inbox_after_effect() -> None:
    from postroad.inbox import Inbox

    slow_handlers(_WINDOW_SECONDS, chance=1.0)

    def first_time(
        original: Callable[..., bool], inbox: Inbox, connection: Any, consumer: str, event: Any, **_: Any
    ) -> bool:
        if inbox.processed(consumer, [event]):
            return False
        threading.Timer(10 * _WINDOW_SECONDS, _insert, (original, inbox, consumer, event)).start()
        return True

    wrap(Inbox, "first_time", first_time)


def _inbox_select_then_insert() -> None:
    from postroad.inbox import Inbox

    selected = threading.local()

    @contextmanager
    def transaction(original: Callable[..., Any], inbox: Inbox) -> Iterator[Any]:
        selected.ids = {str(event) for event in inbox.event_ids("verify.fifo", limit=1_000)}
        if random.random() < _SLOW:
            time.sleep(_SLOW_SECONDS)
        with original(inbox) as connection:
            yield connection

    def first_time(
        original: Callable[..., bool], inbox: Inbox, connection: Any, consumer: str, event: Any, **given: Any
    ) -> bool:
        original(inbox, connection, consumer, event, **given)
        return str(event) not in selected.ids

    wrap(Inbox, "transaction", transaction)
    wrap(Inbox, "first_time", first_time)


def _insert(first_time: Callable[..., bool], inbox: Any, consumer: str, event: Any) -> None:
    with inbox.transaction() as connection:
        first_time(inbox, connection, consumer, event)


def _inbox_without_consumer() -> None:
    from postroad.inbox import Inbox

    def first_time(
        original: Callable[..., bool], inbox: Inbox, connection: Any, _: str, event: Any, **given: Any
    ) -> bool:
        return original(inbox, connection, "everybody", event, **given)

    wrap(Inbox, "first_time", first_time)


def _mark_before_publish() -> None:
    from postroad.outbox.dispatching.sqlite import SQLiteDispatchStore

    def claim(original: Callable[..., Any], store: SQLiteDispatchStore, *args: Any, **given: Any) -> Any:
        rows = original(store, *args, **given)
        with store._file.transaction() as session:
            for row in rows:
                session.change(store._sql("UPDATE {outbox} SET state = 'SENT' WHERE id = ?"), (row.id,))
        time.sleep(_WINDOW_SECONDS if rows else 0)
        return rows

    wrap(SQLiteDispatchStore, "claim", claim)


def _cursor_by_created_at() -> None:
    from postroad.outbox.dispatching.sqlite import SQLiteDispatchStore

    reached = ""

    def claim(original: Callable[..., Any], store: SQLiteDispatchStore, *args: Any, **given: Any) -> Any:
        nonlocal reached
        kept, last = [], reached
        for row in original(store, *args, **given):
            with store._file.reading() as session:
                created = session.rows(store._sql("SELECT createdat FROM {outbox} WHERE id = ?"), (row.id,))[0][0]
            if created > reached:
                kept.append(row)
                last = max(last, created)
        reached = last
        return kept

    wrap(SQLiteDispatchStore, "claim", claim)


def _retry_per_row() -> None:
    from postroad.outbox.dispatching import sqlite

    for statement in ("_HELD_BEFORE", "_ANY_BEFORE", "_ANY_LEASED"):
        rewrite(sqlite, statement, "WHERE {open}", "WHERE 0 AND {open}")


def _two_dispatchers_one_key() -> None:
    from postroad.outbox.dispatching import sqlite

    _retry_per_row()
    unleased = "coalesce(lease_until, '') <= {now}"
    for statement in ("_NEXT_LANE", "_NEXT_TENANT", "_ROWS"):
        rewrite(sqlite, statement, "WHERE {open}", f"WHERE {unleased} AND {{open}}")


def _mutant(
    name: str, bug: str, invariant: str, scenario: str, apply: Callable[[], None], *, kills: int = 20
) -> Mutant:
    return Mutant(name=name, bug=bug, invariant=invariant, scenario=scenario, apply=apply, kills=kills)


MUTANTS = (
    _mutant(
        "retry-per-row",
        "a row that failed does not hold back the later rows of its key",
        "I9",
        "outbox",
        _retry_per_row,
    ),
    _mutant(
        "cursor-by-created-at",
        "a dispatcher never looks behind the newest time that it has seen",
        "I17",
        "outbox",
        _cursor_by_created_at,
    ),
    _mutant("mark-before-publish", "a row counts as sent before it is published", "I1", "outbox", _mark_before_publish),
    _mutant(
        "two-dispatchers-one-key",
        "two dispatchers publish rows of one key at the same time",
        "I9",
        "outbox",
        _two_dispatchers_one_key,
    ),
    _mutant(
        "inbox-after-effect",
        "the inbox row is written after the effect is committed",
        "I5",
        "queue",
        _inbox_after_effect,
    ),
    _mutant(
        "inbox-select-then-insert",
        "the inbox looks first, and writes its row in another transaction",
        "I5",
        "queue",
        _inbox_select_then_insert,
        kills=2,
    ),
    _mutant(
        "inbox-without-consumer", "two consumers share the rows of one inbox", "I5", "bus", _inbox_without_consumer
    ),
)
