"""Throwing away what waits of a subscription: rows at once, and what SQS has already when somebody receives it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from postroad.agents.aws.rows import discarded_of
from postroad.agents.aws.tables import Tables
from postroad.agents.aws.values import text
from postroad.agents.rules import now_text
from postroad.agents.tables import AGENTS, SUBSCRIBER_EVENTS
from postroad.clock import Clock
from postroad.errors import Unavailable

BATCH: Final = 25
ATTEMPTS: Final = 10
_KEPT: Final = timedelta(days=15)
"""Longer than a message stays in its queue."""


class Discarding:
    """Notes down what an agent wants no more, and removes its rows."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def note(self, agent_id: str, producer_id: str, until: int) -> None:
        """Let nothing of the producer up to this sequence be sent or given out; notes that are over go."""
        key = {"agentId": text(agent_id)}
        self._change(key, "SET discarded = :none", "attribute_exists(agentId) AND attribute_not_exists(discarded)",
                     {":none": {"M": {}}}, {})  # fmt: skip
        item = self._tables.call("get_item", AGENTS, Key=key, ConsistentRead=True).get("Item", {})
        highest = max(until, discarded_of(item).get(producer_id, -1))
        over = [name for name in self._over(item) if name != producer_id]
        names = {"#new": producer_id, **{f"#old{n}": name for n, name in enumerate(over)}}
        remove = f" REMOVE {', '.join(f'discarded.#old{n}' for n in range(len(over)))}" if over else ""
        entry = {"M": {"until": text(str(highest)), "at": text(now_text(self._clock.now()))}}
        self._change(key, f"SET discarded.#new = :entry{remove}", "attribute_exists(discarded)",
                     {":entry": entry}, names)  # fmt: skip

    def remove(self, agent_id: str, keys: Sequence[str]) -> None:
        """Remove these rows of the agent."""
        table = self._tables.name(SUBSCRIBER_EVENTS)
        for start in range(0, len(keys), BATCH):
            left: list[Any] = [
                {"DeleteRequest": {"Key": {"subscriberId": text(agent_id), "timestamp": text(key)}}}
                for key in keys[start : start + BATCH]
            ]
            for _ in range(ATTEMPTS):
                left = self._tables.batch("batch_write_item", {table: left}).get("UnprocessedItems", {}).get(table, [])
                if not left:
                    break
            else:
                raise Unavailable("DynamoDB does not take what is to be removed", remedy="Unsubscribe again.")

    def _change(self, key: Any, update: str, condition: str, values: dict[str, Any], names: dict[str, str]) -> None:
        more = {"ExpressionAttributeNames": names} if names else {}
        self._tables.conditional(
            "update_item", AGENTS, Key=key, UpdateExpression=update, ConditionExpression=condition,
            ExpressionAttributeValues=values, **more,
        )  # fmt: skip

    def _over(self, item: Any) -> list[str]:
        """Producers whose note is older than any message."""
        oldest = self._clock.now().astimezone(UTC) - _KEPT
        told = item.get("discarded", {}).get("M", {})
        return [name for name, entry in told.items() if datetime.fromisoformat(entry["M"]["at"]["S"]) < oldest]
