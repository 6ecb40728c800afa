"""The agents of the embedded file, their subscriptions and grants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

import msgspec

from postroad.agents.model import Deleted, Subscription, milliseconds, time_text
from postroad.agents.port import AgentRecord, NewAgent, taken
from postroad.agents.sqlite import message_groups
from postroad.agents.sqlite.queue import waiting
from postroad.agents.sqlite.tables import active, channel, named, number
from postroad.engine import Engine, Transaction, every, one

T = TypeVar("T")
_COLUMNS: Final = "id, created_ms, total, open, token_hash, former_hash, former_until"
_GET: Final = f"SELECT {_COLUMNS} FROM agent WHERE id = ? AND state = 'active'"  # noqa: S608 - a constant
_PAGE: Final = f"SELECT {_COLUMNS} FROM agent WHERE id > ? AND state = 'active' ORDER BY id LIMIT ?"  # noqa: S608 - a constant
_STATE: Final = "SELECT state FROM agent WHERE id = ?"
_ADD: Final = """
INSERT INTO agent (id, state, created_ms, total, open, token_hash) VALUES (?1, 'active', ?2, ?3, ?4, ?5)
ON CONFLICT (id) DO UPDATE SET state = 'active', created_ms = ?2, total = ?3, open = ?4, token_hash = ?5
"""
_ROTATE: Final = """
UPDATE agent SET former_hash = token_hash, former_until = ?3, token_hash = ?2
WHERE id = ?1 AND state = 'active' RETURNING num
"""
_REPLACE: Final = "UPDATE agent SET token_hash = ?2 WHERE id = ?1 AND state = 'active' RETURNING num"
_LISTENS: Final = "DELETE FROM agent_pair WHERE subscriber = ?"
_IS_HEARD: Final = "DELETE FROM agent_pair WHERE producer = ?"
_FORGET: Final = (
    "DELETE FROM agent_grant WHERE producer = ?1 OR subscriber = ?1",
    "DELETE FROM agent_row WHERE lane = ?1",
    "DELETE FROM agent_held_row WHERE lane = ?1",
    "DELETE FROM agent_lease WHERE lane = ?1",
    "DELETE FROM agent_aside WHERE lane = ?1",
    "DELETE FROM agent_group WHERE lane = ?1",
    "DELETE FROM agent_dead WHERE lane = ?1",
    "DELETE FROM agent_lane WHERE lane = ?1",
    "UPDATE agent SET state = 'deleted', token_hash = NULL, former_hash = NULL WHERE num = ?1",
)
_SUBSCRIBE: Final = """
INSERT INTO agent_pair (producer, subscriber, created_us, after, types) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
"""
_SET_TYPES: Final = """
UPDATE agent_pair SET types = ?3 WHERE producer = ?1 AND subscriber = ?2 AND types IS NOT ?3
"""
_UNSUBSCRIBE: Final = "DELETE FROM agent_pair WHERE producer = ? AND subscriber = ? RETURNING paused"
_PAIRS: Final = """
SELECT producer.id, subscriber.id, pair.created_us, pair.paused, pair.types FROM agent_pair AS pair
JOIN agent AS producer ON producer.num = pair.producer JOIN agent AS subscriber ON subscriber.num = pair.subscriber
"""
_OF_LISTENER: Final = f"""
{_PAIRS} WHERE pair.subscriber = (SELECT num FROM agent WHERE id = ?) AND producer.id > ? ORDER BY producer.id LIMIT ?
"""  # noqa: S608 - a constant
_OF_PRODUCER: Final = f"""
{_PAIRS} WHERE pair.producer = (SELECT num FROM agent WHERE id = ?) AND subscriber.id > ? ORDER BY subscriber.id LIMIT ?
"""  # noqa: S608 - a constant
_GRANT: Final = "INSERT INTO agent_grant (producer, subscriber, created_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_PAIR: Final = "producer = (SELECT num FROM agent WHERE id = ?) AND subscriber = (SELECT num FROM agent WHERE id = ?)"
_REVOKE: Final = f"DELETE FROM agent_grant WHERE {_PAIR}"  # noqa: S608 - a constant
_IS_GRANTED: Final = f"SELECT 1 FROM agent_grant WHERE {_PAIR}"  # noqa: S608 - a constant

Newest = Callable[[str], int]
"""Returns the newest sequence of the shard that a producer's events go to."""


class SQLiteRegistry:
    """Agents, their tokens and their tombstones."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, agents: Sequence[NewAgent]) -> list[str | None]:
        rows = [
            (each.agent_id, milliseconds(each.created_at), each.order == "total", each.accept == "all", each.token_hash)
            for each in agents
        ]

        def work(tx: Transaction) -> list[str | None]:
            for agent in agents:
                row = one(tx.connection, _STATE, (agent.agent_id,))
                if row is not None and row[0] != "named":
                    raise taken(agent.agent_id, deleted=row[0] == "deleted")
            tx.connection.executemany(_ADD, rows)
            return [None] * len(rows)

        return self._engine.write(work)

    def get(self, agent_id: str) -> AgentRecord | None:
        row = self._engine.read(lambda connection: one(connection, _GET, (agent_id,)))
        return None if row is None else _record(row)

    def page(self, limit: int, after: str | None) -> list[AgentRecord]:
        rows = self._engine.read(lambda connection: every(connection, _PAGE, (after or "", limit)))
        return [_record(row) for row in rows]

    def known(self, agent_ids: Collection[str]) -> set[str]:
        return self._engine.read(lambda connection: {each for each in agent_ids if one(connection, _GET, (each,))})

    def set_token(self, agent_id: str, token_hash: str, *, former_until: float | None) -> bool:
        former = () if former_until is None else (former_until,)
        statement = _ROTATE if former else _REPLACE

        def work(tx: Transaction) -> bool:
            row = one(tx.connection, statement, (agent_id, token_hash, *former))
            if row is not None:
                # A stream that was opened with the former token may have to end.
                tx.touch(channel(row[0]))
            return row is not None

        return self._engine.write(work)

    def delete(self, agent_id: str) -> Deleted:
        """Remove the agent with its queue and its subscriptions in both directions, in one step."""

        def work(tx: Transaction) -> Deleted:
            num = active(tx.connection, agent_id)
            discarded = waiting(tx.connection, num)
            tx.connection.execute(_LISTENS, (num,))
            subscriptions = tx.connection.changes()
            tx.connection.execute(_IS_HEARD, (num,))
            subscribers = tx.connection.changes()
            for statement in _FORGET:
                tx.connection.execute(statement, (num,))
            tx.touch(channel(num))
            return Deleted(discarded, subscriptions, subscribers)

        return self._engine.write(work, removes=True)


def _record(row: Any) -> AgentRecord:
    agent_id, created_ms, total, accepts_all, token_hash, former_hash, former_until = row
    return AgentRecord(
        agent_id=agent_id,
        created_at=time_text(created_ms),
        order="total" if total else "producer",
        accept="all" if accepts_all else "listed",
        token_hash=token_hash,
        former_hash=former_hash,
        former_until=former_until,
    )


class SQLiteSubscriptions:
    """Subscriptions and grants."""

    def __init__(self, engine: Engine, newest: Newest) -> None:
        self._engine = engine
        self._newest = newest

    def add(
        self, pairs: Sequence[tuple[str, str]], *, validate: bool, event_types: tuple[str, ...] | None = None
    ) -> int:
        # Read before the pairs are written: an event that comes in between is delivered rather than missed.
        created_us = self._engine.now_us()
        newest = {producer: self._newest(producer) for producer in {producer for _, producer in pairs}}
        types = None if event_types is None else msgspec.json.encode(event_types).decode()

        def work(tx: Transaction) -> int:
            find = active if validate else lambda _, agent_id: named(tx, agent_id)
            listeners = {listener: active(tx.connection, listener) for listener, _ in pairs}
            producers = {producer: find(tx.connection, producer) for producer in newest}
            rows = [
                (producers[producer], listeners[listener], created_us, newest[producer], types)
                for listener, producer in pairs
            ]
            new = sum(1 for _ in tx.connection.executemany(_SUBSCRIBE, rows))
            if new < len(rows):
                tx.connection.executemany(_SET_TYPES, [(producer, listener, types) for producer, listener, *_ in rows])
            return new

        return self._engine.write(work)

    def remove(self, listener_id: str, producer_id: str, *, discard: bool) -> bool:
        """End a subscription; what was withheld is delivered unless it is discarded."""

        def work(tx: Transaction) -> bool:
            listener, producer = (number(tx.connection, each) for each in (listener_id, producer_id))
            if listener is None or producer is None:
                return False
            row = one(tx.connection, _UNSUBSCRIBE, (producer, listener))
            monotonic_us = self._engine.monotonic_us()
            if row is not None and row[0]:
                message_groups.resume(tx, listener, producer, monotonic_us)
            if discard:
                message_groups.discard(tx, listener, producer, monotonic_us)
            return row is not None

        return self._engine.write(work, relieves=True)

    def page(
        self, limit: int, after: str | None, *, listener_id: str | None = None, producer_id: str | None = None
    ) -> list[Subscription]:
        statement = _OF_PRODUCER if listener_id is None else _OF_LISTENER
        arguments = (listener_id or producer_id, after or "", limit)
        rows = self._engine.read(lambda connection: every(connection, statement, arguments))
        return [
            Subscription(
                producer,
                subscriber,
                time_text(created_us // 1_000),
                "paused" if paused else "active",
                None if types is None else msgspec.json.decode(types, type=tuple[str, ...]),
            )
            for producer, subscriber, created_us, paused, types in rows
        ]

    def grant(self, producer_id: str, listener_id: str) -> None:
        def work(tx: Transaction) -> None:
            pair = (active(tx.connection, producer_id), active(tx.connection, listener_id))
            tx.connection.execute(_GRANT, (*pair, self._engine.now_us() // 1_000))

        self._engine.write(work)

    def revoke(self, producer_id: str, listener_id: str) -> None:
        self._engine.write(lambda tx: tx.connection.execute(_REVOKE, (producer_id, listener_id)), removes=True)

    def pause(self, listener_id: str, producer_id: str) -> bool:
        return self._engine.write(lambda tx: self._change(tx, message_groups.pause, listener_id, producer_id) or False)

    def resume(self, listener_id: str, producer_id: str) -> bool:
        return self._engine.write(lambda tx: self._change(tx, message_groups.resume, listener_id, producer_id) or False)

    def replay(self, listener_id: str, producer_id: str, since_ms: int) -> int | None:
        def replay(tx: Transaction, listener: int, producer: int, monotonic_us: int) -> int | None:
            now_us = self._engine.now_us()
            return message_groups.replay(tx, listener, producer, monotonic_us, since_ms=since_ms, now_us=now_us)

        return self._engine.write(lambda tx: self._change(tx, replay, listener_id, producer_id))

    def _change(self, tx: Transaction, verb: Callable[..., T], listener_id: str, producer_id: str) -> T | None:
        """Run `verb(tx, listener, producer, now)` on a subscription; return None if there is none."""
        pair = [number(tx.connection, each) for each in (listener_id, producer_id)]
        return None if None in pair else verb(tx, *pair, self._engine.monotonic_us())

    def is_granted(self, producer_id: str, listener_id: str) -> bool:
        found = self._engine.read(lambda connection: one(connection, _IS_GRANTED, (producer_id, listener_id)))
        return found is not None
