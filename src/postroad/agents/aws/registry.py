"""Agents in DynamoDB, each with a FIFO queue of SQS."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from postroad.agents.aws.rows import number, text
from postroad.agents.aws.tables import MOST_AT_ONCE, PAUSES, Tables
from postroad.agents.model import Deleted
from postroad.agents.port import AgentRecord, NewAgent
from postroad.agents.rules import not_found
from postroad.agents.tables import (
    AGENT_GRANTS,
    AGENTS,
    BY_SUBSCRIBER,
    DEAD_QUEUE,
    RETENTION_SECONDS,
    SUBSCRIBERS,
    lane_name,
)
from postroad.connections import CONSUME, FIND, allowed, document
from postroad.errors import AgentDeleted, AgentExists, ConfigurationError, QueueNotFound, Unavailable
from postroad.queues import QueueSpec, SQSQueues

_STATE: Final = {"#state": "state"}


class DynamoRegistry:
    """Agents, their tokens, their queues and their tombstones."""

    def __init__(self, tables: Tables, queues: SQSQueues, *, visibility: float, max_receives: int) -> None:
        self._tables = tables
        self._queues = queues
        self._visibility = visibility
        self._max_receives = max_receives

    def add(self, agents: Sequence[NewAgent]) -> list[str | None]:
        """Keep new agents: queues first, items last, so that a repeat repairs what a crash left."""
        self._missing(agents)
        urls = [self._make_queue(agent) for agent in agents]
        made = list(zip(agents, urls, strict=True))
        for start in range(0, len(made), MOST_AT_ONCE):
            self._put(made[start : start + MOST_AT_ONCE])
        return list(urls)

    def get(self, agent_id: str) -> AgentRecord | None:
        """The agent, unless it is unknown, being deleted or deleted."""
        item = self._item(agent_id)
        return None if item is None or item["state"]["S"] != "active" else _record(item)

    def page(self, limit: int, after: str | None) -> list[AgentRecord]:
        """Agents behind the id `after`, in the order of DynamoDB."""
        start = {} if after is None else {"ExclusiveStartKey": {"agentId": text(after)}}
        found = []
        for item in self._tables.pages("scan", AGENTS, **start):
            if item["state"]["S"] == "active":
                found.append(_record(item))
            if len(found) == limit:
                break
        return found

    def known(self, agent_ids: Collection[str]) -> set[str]:
        """Which of these are registered."""
        found = self._tables.read(AGENTS, [{"agentId": text(agent_id)} for agent_id in agent_ids])
        return {item["agentId"]["S"] for item in found if item["state"]["S"] == "active"}

    def set_token(self, agent_id: str, token_hash: str, *, former_until: float) -> bool:
        """Give the agent another token."""
        update = "SET formerHash = tokenHash, formerUntil = :until, tokenHash = :hash"
        return self._change_token(agent_id, update, {":until": number(former_until), ":hash": text(token_hash)})

    def replace_token(self, agent_id: str, token_hash: str) -> bool:
        """Give the agent another token in the place of its newest."""
        return self._change_token(agent_id, "SET tokenHash = :hash", {":hash": text(token_hash)})

    def delete(self, agent_id: str) -> Deleted:
        """Token and publishing first, then subscriptions, the queue, and the item last; a repeat goes on."""
        began = self._tables.conditional(
            "update_item",
            AGENTS,
            Key={"agentId": text(agent_id)},
            UpdateExpression="SET #state = :deleting REMOVE tokenHash, formerHash",
            ConditionExpression="attribute_exists(agentId) AND #state <> :deleted",
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":deleting": text("deleting"), ":deleted": text("deleted")},
        )
        if began is None:
            raise not_found(agent_id)
        subscriptions = self._remove_pairs("subscriberId", agent_id)
        subscribers = self._remove_pairs("producerId", agent_id)
        self._remove_grants(agent_id)
        discarded = self._remove_queue(agent_id)
        self._tables.call(
            "update_item",
            AGENTS,
            Key={"agentId": text(agent_id)},
            UpdateExpression="SET #state = :deleted",
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":deleted": text("deleted")},
        )
        return Deleted(discarded, subscriptions, subscribers)

    def _change_token(self, agent_id: str, update: str, values: dict[str, Any]) -> bool:
        done = self._tables.conditional(
            "update_item",
            AGENTS,
            Key={"agentId": text(agent_id)},
            UpdateExpression=update,
            ConditionExpression="#state = :active",
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={**values, ":active": text("active")},
        )
        return done is not None

    def _make_queue(self, agent: NewAgent) -> str:
        spec = QueueSpec(
            lane_name(agent.agent_id),
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
                error.remedy = "Make what agents need with agents.provision() or `postroad agent provision`."
            raise
        principal = agent.principal_arn
        if principal is not None:
            self._queues.change_policy(queue, lambda _: _policy(queue.arn, principal))
        return queue.url

    def _put(self, made: Sequence[tuple[NewAgent, str]]) -> None:
        """Write the items in one step; what somebody else writes meanwhile is looked at again."""
        urls = {agent.agent_id: url for agent, url in made}
        for pause in PAUSES:
            time.sleep(pause)
            missing = self._missing([agent for agent, _ in made])
            puts = [self._new_item(agent, urls[agent.agent_id]) for agent in missing]
            if not puts or self._tables.transact(puts):
                return
        raise Unavailable("others register the same agents all the time", remedy="Register again.")

    def _missing(self, agents: Sequence[NewAgent]) -> list[NewAgent]:
        """Those of the agents that are not there yet. Taken by somebody else: `AgentExists` or `AgentDeleted`."""
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

    def _item(self, agent_id: str) -> Mapping[str, Any] | None:
        answer = self._tables.call("get_item", AGENTS, Key={"agentId": text(agent_id)}, ConsistentRead=True)
        found: Mapping[str, Any] | None = answer.get("Item")
        return found

    def _remove_pairs(self, side: str, agent_id: str) -> int:
        index = {"IndexName": BY_SUBSCRIBER} if side == "subscriberId" else {"ConsistentRead": True}
        found = self._tables.pages(
            "query",
            SUBSCRIBERS,
            KeyConditionExpression=f"{side} = :id",
            ExpressionAttributeValues={":id": text(agent_id)},
            **index,
        )
        removed = 0
        for item in list(found):
            key = {name: item[name] for name in ("producerId", "subscriberId")}
            self._tables.call("delete_item", SUBSCRIBERS, Key=key)
            removed += 1
        return removed

    def _remove_grants(self, agent_id: str) -> None:
        granted = self._tables.pages(
            "query",
            AGENT_GRANTS,
            KeyConditionExpression="producerId = :id",
            ExpressionAttributeValues={":id": text(agent_id)},
        )
        for item in list(granted):
            key = {name: item[name] for name in ("producerId", "subscriberId")}
            self._tables.call("delete_item", AGENT_GRANTS, Key=key)

    def _remove_queue(self, agent_id: str) -> int:
        with suppress(QueueNotFound):
            stats = self._queues.queue(lane_name(agent_id)).stats()
            self._queues.delete_queue(lane_name(agent_id))
            return stats.visible + stats.in_flight + stats.delayed
        return 0


def _policy(arn: str, principal: str) -> str:
    statement = {**allowed((*CONSUME, *FIND), arn, sid="agent"), "Principal": {"AWS": principal}}
    return json.dumps(document([statement]))


def _is_there(agent: NewAgent, item: Mapping[str, Any] | None) -> bool:
    """Whether this very agent is kept already: a write that timed out may have taken effect."""
    if item is None:
        return False
    if item["state"]["S"] != "active":
        raise AgentDeleted(f'agent "{agent.agent_id}" was deleted; its id is never given again', field="agentId")
    if item.get("tokenHash") != text(agent.token_hash):
        raise AgentExists(f'agent "{agent.agent_id}" exists', field="agentId")
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
