"""The agents in the embedded file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import apsw

from postroad.agents.model import Deleted
from postroad.agents.port import AgentRecord, NewAgent
from postroad.agents.rules import milliseconds, time_text
from postroad.agents.sqlite import names
from postroad.agents.sqlite.queries import waiting
from postroad.engine import Engine, Transaction, every, one
from postroad.errors import AgentDeleted, AgentExists

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


class SQLiteRegistry:
    """Agents, their tokens and their tombstones."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, agents: Sequence[NewAgent]) -> list[str | None]:
        """Keep new agents, all or none."""
        rows = [
            (
                agent.agent_id,
                milliseconds(agent.created_at),
                agent.order == "total",
                agent.accept == "all",
                agent.token_hash,
            )
            for agent in agents
        ]

        def work(tx: Transaction) -> list[str | None]:
            for agent in agents:
                _refuse_taken(tx.connection, agent.agent_id)
            tx.connection.executemany(_ADD, rows)
            return [None] * len(rows)

        return self._engine.write(work)

    def get(self, agent_id: str) -> AgentRecord | None:
        """The agent, unless it is unknown or deleted."""
        row = self._engine.read(lambda connection: one(connection, _GET, (agent_id,)))
        return None if row is None else _record(row)

    def page(self, limit: int, after: str | None) -> list[AgentRecord]:
        """Agents behind the id `after`, by id."""
        rows = self._engine.read(lambda connection: every(connection, _PAGE, (after or "", limit)))
        return [_record(row) for row in rows]

    def known(self, agent_ids: Collection[str]) -> set[str]:
        """Which of these are registered."""

        def look(connection: apsw.Connection) -> set[str]:
            return {agent_id for agent_id in agent_ids if one(connection, _GET, (agent_id,)) is not None}

        return self._engine.read(look)

    def set_token(self, agent_id: str, token_hash: str, *, former_until: float) -> bool:
        """Give the agent another token."""
        return self._set_token(_ROTATE, (agent_id, token_hash, former_until))

    def replace_token(self, agent_id: str, token_hash: str) -> bool:
        """Give the agent another token in the place of its newest."""
        return self._set_token(_REPLACE, (agent_id, token_hash))

    def delete(self, agent_id: str) -> Deleted:
        """Remove the agent with its lane and its subscriptions in both directions, in one step."""

        def work(tx: Transaction) -> Deleted:
            num = names.active(tx.connection, agent_id)
            discarded = waiting(tx.connection, num)
            subscriptions, subscribers = (_removed(tx.connection, each, num) for each in (_LISTENS, _IS_HEARD))
            for statement in _FORGET:
                tx.connection.execute(statement, (num,))
            tx.touch(names.channel(num))
            return Deleted(discarded, subscriptions, subscribers)

        return self._engine.write(work, removes=True)

    def _set_token(self, statement: str, arguments: tuple[Any, ...]) -> bool:
        def work(tx: Transaction) -> bool:
            row = one(tx.connection, statement, arguments)
            if row is not None:
                # Who listens with the former token may have to stop.
                tx.touch(names.channel(row[0]))
            return row is not None

        return self._engine.write(work)


def _removed(connection: apsw.Connection, statement: str, num: int) -> int:
    connection.execute(statement, (num,))
    return connection.changes()


def _refuse_taken(connection: apsw.Connection, agent_id: str) -> None:
    row = one(connection, _STATE, (agent_id,))
    if row is None or row[0] == "named":
        return
    if row[0] == "deleted":
        raise AgentDeleted(f'agent "{agent_id}" was deleted; its id is never given again', field="agentId")
    raise AgentExists(f'agent "{agent_id}" exists', field="agentId")


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
