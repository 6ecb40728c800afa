"""Who listens to whom, in the embedded file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from postroad.agents.model import Subscription
from postroad.agents.rules import time_text
from postroad.agents.sqlite import groups, names
from postroad.engine import Engine, Transaction, every, one

_ADD: Final = """
INSERT INTO agent_pair (producer, subscriber, created_us, after) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1
"""
_REMOVE: Final = "DELETE FROM agent_pair WHERE producer = ? AND subscriber = ? RETURNING paused"
_PAIRS: Final = """
SELECT producer.id, subscriber.id, pair.created_us, pair.paused FROM agent_pair AS pair
JOIN agent AS producer ON producer.num = pair.producer JOIN agent AS subscriber ON subscriber.num = pair.subscriber
"""
_GET: Final = f"{_PAIRS} WHERE producer.id = ? AND subscriber.id = ?"
_OF_LISTENER: Final = f"""
{_PAIRS} WHERE pair.subscriber = (SELECT num FROM agent WHERE id = ?) AND producer.id > ? ORDER BY producer.id LIMIT ?
"""  # noqa: S608 - a constant
_OF_PRODUCER: Final = f"""
{_PAIRS} WHERE pair.producer = (SELECT num FROM agent WHERE id = ?) AND subscriber.id > ? ORDER BY subscriber.id LIMIT ?
"""  # noqa: S608 - a constant
_GRANT: Final = "INSERT INTO agent_grant (producer, subscriber, created_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_REVOKE: Final = "DELETE FROM agent_grant WHERE producer = ? AND subscriber = ?"
_IS_GRANTED: Final = """
SELECT 1 FROM agent_grant WHERE producer = (SELECT num FROM agent WHERE id = ?)
AND subscriber = (SELECT num FROM agent WHERE id = ?)
"""

Newest = Callable[[str], int]
"""The newest sequence of the shard that a producer's events go to."""


class SQLiteSubscriptions:
    """Subscriptions and grants."""

    def __init__(self, engine: Engine, newest: Newest) -> None:
        self._engine = engine
        self._newest = newest

    def add(self, pairs: Sequence[tuple[str, str]], *, validate: bool) -> int:
        """Subscribe each (listener, producer); how many are new."""
        # Looked at before the pairs are written: what comes in between is delivered rather than missed.
        created_us = self._engine.now_us()
        newest = {producer: self._newest(producer) for producer in {producer for _, producer in pairs}}

        def work(tx: Transaction) -> int:
            find = names.active if validate else lambda _, agent_id: names.named(tx, agent_id)
            listeners = {listener: names.active(tx.connection, listener) for listener, _ in pairs}
            producers = {producer: find(tx.connection, producer) for producer in newest}
            rows = [
                (producers[producer], listeners[listener], created_us, newest[producer]) for listener, producer in pairs
            ]
            return sum(1 for _ in tx.connection.executemany(_ADD, rows))

        return self._engine.write(work)

    def remove(self, listener_id: str, producer_id: str, *, discard: bool) -> bool:
        """End a subscription; what was withheld is deliverable again unless it is discarded."""

        def work(tx: Transaction) -> bool:
            listener, producer = (names.number(tx.connection, each) for each in (listener_id, producer_id))
            if listener is None or producer is None:
                return False
            row = one(tx.connection, _REMOVE, (producer, listener))
            monotonic_us = self._engine.monotonic_us()
            if row is not None and row[0]:
                groups.resume(tx, listener, producer, monotonic_us)
            if discard:
                groups.discard(tx, listener, producer, monotonic_us)
            return row is not None

        return self._engine.write(work, relieves=True)

    def get(self, listener_id: str, producer_id: str) -> Subscription | None:
        """One subscription."""
        row = self._engine.read(lambda connection: one(connection, _GET, (producer_id, listener_id)))
        return None if row is None else _subscription(row)

    def page(
        self, *, listener_id: str | None = None, producer_id: str | None = None, limit: int, after: str | None
    ) -> list[Subscription]:
        """Subscriptions of one listener or to one producer, by the other side's id."""
        statement = _OF_PRODUCER if listener_id is None else _OF_LISTENER
        arguments = (listener_id or producer_id, after or "", limit)
        rows = self._engine.read(lambda connection: every(connection, statement, arguments))
        return [_subscription(row) for row in rows]

    def grant(self, producer_id: str, listener_id: str) -> None:
        """Let the listener subscribe to the producer."""

        def work(tx: Transaction) -> None:
            pair = (names.active(tx.connection, producer_id), names.active(tx.connection, listener_id))
            tx.connection.execute(_GRANT, (*pair, self._engine.now_us() // 1_000))

        self._engine.write(work)

    def revoke(self, producer_id: str, listener_id: str) -> None:
        """Take the grant back."""

        def work(tx: Transaction) -> None:
            pair = (names.number(tx.connection, producer_id), names.number(tx.connection, listener_id))
            tx.connection.execute(_REVOKE, pair)

        self._engine.write(work, removes=True)

    def is_granted(self, producer_id: str, listener_id: str) -> bool:
        """Whether the producer granted it."""
        pair = (producer_id, listener_id)
        return self._engine.read(lambda connection: one(connection, _IS_GRANTED, pair)) is not None


def _subscription(row: Any) -> Subscription:
    producer_id, subscriber_id, created_us, paused = row
    return Subscription(
        producer_id=producer_id,
        subscriber_id=subscriber_id,
        created_at=time_text(created_us // 1_000),
        state="paused" if paused else "active",
    )
