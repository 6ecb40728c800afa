"""Agents in DynamoDB, each with a FIFO queue of SQS."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from postroad.agents.aws.rows import number, text
from postroad.agents.model import Deleted, not_found
from postroad.agents.port import AgentRecord, NewAgent, taken
from postroad.agents.tables import (
    AGENT_GRANTS,
    AGENTS,
    BY_SUBSCRIBER,
    DEAD_QUEUE,
    MOST_AT_ONCE,
    PAUSES,
    RETENTION_SECONDS,
    SUBSCRIBERS,
    Table,
    Tables,
    queue_name,
)
from postroad.connections import CONSUME, FIND, allowed, document
from postroad.errors import ConfigurationError, QueueNotFound, Unavailable
from postroad.queues import QueueSpec, SQSQueues

_EXISTS: Final = "attribute_exists(agentId)"


class DynamoRegistry:
    """Agents, their tokens, their queues and their tombstones."""

    def __init__(self, tables: Tables, queues: SQSQueues, *, visibility: float, max_receives: int) -> None:
        self._tables = tables
        self._queues = queues
        self._visibility = visibility
        self._max_receives = max_receives

    def add(self, agents: Sequence[NewAgent]) -> list[str | None]:
        """Add agents: queues first, items last, so that a repeat repairs what a crash left."""
        self._missing(agents)
        urls = [self._make_queue(agent) for agent in agents]
        made = list(zip(agents, urls, strict=True))
        for start in range(0, len(made), MOST_AT_ONCE):
            self._put(made[start : start + MOST_AT_ONCE])
        return list(urls)

    def get(self, agent_id: str) -> AgentRecord | None:
        item = self._tables.item(AGENTS, {"agentId": text(agent_id)})
        return None if item is None or item["state"]["S"] != "active" else _record(item)

    def page(self, limit: int, after: str | None) -> list[AgentRecord]:
        start = {} if after is None else {"ExclusiveStartKey": {"agentId": text(after)}}
        found = []
        for item in self._tables.pages("scan", AGENTS, **start):
            if item["state"]["S"] == "active":
                found.append(_record(item))
            if len(found) == limit:
                break
        return found

    def known(self, agent_ids: Collection[str]) -> set[str]:
        found = self._tables.read(AGENTS, [{"agentId": text(agent_id)} for agent_id in agent_ids])
        return {item["agentId"]["S"] for item in found if item["state"]["S"] == "active"}

    def set_token(self, agent_id: str, token_hash: str, *, former_until: float | None) -> bool:
        update, values = "SET tokenHash = :hash", {":hash": text(token_hash), ":active": text("active")}
        if former_until is not None:
            update = "SET formerHash = tokenHash, formerUntil = :until, tokenHash = :hash"
            values[":until"] = number(former_until)
        return self._tables.update(AGENTS, {"agentId": text(agent_id)}, update, "#state = :active", values)

    def delete(self, agent_id: str) -> Deleted:
        """Remove the token first, then subscriptions, the queue, and the item last; a repeat goes on."""
        key, deleted = {"agentId": text(agent_id)}, {":deleted": text("deleted")}
        begin, values = f"{_EXISTS} AND #state <> :deleted", {**deleted, ":deleting": text("deleting")}
        if not self._tables.update(AGENTS, key, "SET #state = :deleting REMOVE tokenHash, formerHash", begin, values):
            raise not_found(agent_id)
        subscriptions = self._remove_pairs(SUBSCRIBERS, "subscriberId", agent_id, IndexName=BY_SUBSCRIBER)
        subscribers = self._remove_pairs(SUBSCRIBERS, "producerId", agent_id, ConsistentRead=True)
        self._remove_pairs(AGENT_GRANTS, "producerId", agent_id)
        discarded = self._remove_queue(agent_id)
        self._tables.update(AGENTS, key, "SET #state = :deleted", _EXISTS, deleted)
        return Deleted(discarded, subscriptions, subscribers)

    def _make_queue(self, agent: NewAgent) -> str:
        spec = QueueSpec(
            queue_name(agent.agent_id),
            fifo=True,
            visibility=self._visibility,
            retention=RETENTION_SECONDS,
            dead_letter=DEAD_QUEUE,
            max_receives=self._max_receives,
            dedup_scope="group",
        )
        try:
            queue = self._queues.create_queue(spec)
        except ConfigurationError as error:
            if error.field == "dead_letter":
                error.remedy = "Make what agents need: `postroad agent provision`."
            raise
        principal = agent.principal_arn
        if principal is not None:
            statement = {**allowed((*CONSUME, *FIND), queue.arn, sid="agent"), "Principal": {"AWS": principal}}
            self._queues.change_policy(queue, lambda _: json.dumps(document([statement])))
        return queue.url

    def _put(self, made: Sequence[tuple[NewAgent, str]]) -> None:
        """Write the items in one step, and read again when somebody else wrote some in the meantime."""
        urls = {agent.agent_id: url for agent, url in made}
        for pause in PAUSES:
            time.sleep(pause)
            missing = self._missing([agent for agent, _ in made])
            puts = [self._new_item(agent, urls[agent.agent_id]) for agent in missing]
            if not puts or self._tables.transact(puts):
                return
        raise Unavailable("others keep registering the same agents", remedy="Register again.")

    def _missing(self, agents: Sequence[NewAgent]) -> list[NewAgent]:
        """Return the agents that are not stored yet; raise `AgentExists` or `AgentDeleted` if an id is taken."""
        keys = [{"agentId": text(agent.agent_id)} for agent in agents]
        found = {item["agentId"]["S"]: item for item in self._tables.read(AGENTS, keys)}
        return [agent for agent in agents if not _is_there(agent, found.get(agent.agent_id))]

    def _new_item(self, agent: NewAgent, url: str) -> dict[str, Any]:
        item = {
            "agentId": text(agent.agent_id),
            "createdAt": text(agent.created_at),
            "order": text(agent.order),
            "accept": text(agent.accept),
            "tokenHash": text(agent.token_hash),
            "queueUrl": text(url),
            "state": text("active"),
        }
        condition = "attribute_not_exists(agentId)"
        return {"Put": {"TableName": self._tables.name(AGENTS), "Item": item, "ConditionExpression": condition}}

    def _remove_pairs(self, table: Table, side: str, agent_id: str, **where: Any) -> int:
        where |= {"KeyConditionExpression": f"{side} = :id", "ExpressionAttributeValues": {":id": text(agent_id)}}
        found = list(self._tables.pages("query", table, **where))
        for item in found:
            self._tables.call("delete_item", table, Key={name: item[name] for name in ("producerId", "subscriberId")})
        return len(found)

    def _remove_queue(self, agent_id: str) -> int:
        with suppress(QueueNotFound):
            stats = self._queues.queue(queue_name(agent_id)).stats()
            self._queues.delete_queue(queue_name(agent_id))
            return stats.visible + stats.in_flight + stats.delayed
        return 0


def _is_there(agent: NewAgent, item: Mapping[str, Any] | None) -> bool:
    """Return whether this very agent is stored already: a write that timed out may have taken effect."""
    if item is None:
        return False
    if item["state"]["S"] != "active" or item.get("tokenHash") != text(agent.token_hash):
        raise taken(agent.agent_id, deleted=item["state"]["S"] != "active")
    return True


def _record(item: Mapping[str, Any]) -> AgentRecord:
    return AgentRecord(
        agent_id=item["agentId"]["S"],
        created_at=item["createdAt"]["S"],
        order=item["order"]["S"],
        accept=item["accept"]["S"],
        token_hash=item["tokenHash"]["S"] if "tokenHash" in item else None,
        queue_url=item["queueUrl"]["S"],
        former_hash=item["formerHash"]["S"] if "formerHash" in item else None,
        former_until=float(item["formerUntil"]["N"]) if "formerUntil" in item else 0.0,
    )
