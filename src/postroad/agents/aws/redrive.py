"""Dead letters and rejects on SQS: brought back for one agent, thrown away with a subscription, or put aside."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from postroad.agents.aws.rows import discarded_of, text
from postroad.agents.aws.tables import Tables
from postroad.agents.port import Rejected
from postroad.agents.rules import now_text
from postroad.agents.tables import AGENTS, SUBSCRIBER_EVENTS
from postroad.clock import Clock
from postroad.errors import MessageTooLarge, PostroadError, Unavailable
from postroad.queues import Delivery, OutgoingMessage, Queue

_VISIBILITY: Final = 60.0


def redrive(dead: Queue, target: Queue, is_own: Callable[[Delivery], bool], limit: int | None) -> int:
    """Move what is the agent's own behind what waits for it, at most `limit`; how many."""
    moved, held, seen_before = 0, list[Delivery](), set[str]()
    while limit is None or moved < limit:
        batch = dead.receive(max_messages=10, visibility=_VISIBILITY)
        if not batch:
            foreign = [each for each in held if each.message_id not in seen_before]
            if not foreign or not dead.stats().visible:
                break
            # Their groups are locked and hide what stands behind them: they go to the end.
            seen_before |= _put_behind(dead, foreign)
            held = [each for each in held if each not in foreign]
            continue
        own = [each for each in batch if is_own(each)][: None if limit is None else limit - moved]
        sent = _send(target, own, "redriven")
        dead.ack([each for each, _ in sent])
        moved += len(sent)
        taken = {each.message_id for each, _ in sent}
        held += [each for each in batch if each.message_id not in taken]
    dead.release(held)
    return moved


def _put_behind(dead: Queue, foreign: Sequence[Delivery]) -> set[str]:
    """Send dead letters to the end of their queue; the ids under which they stand there."""
    sent = _send(dead, foreign, "behind")
    dead.ack([each for each, _ in sent])
    dead.release([each for each in foreign if each not in [before for before, _ in sent]])
    return {message_id for _, message_id in sent}


def _send(queue: Queue, deliveries: Sequence[Delivery], why: str) -> list[tuple[Delivery, str]]:
    """Send them in order; those that were taken, and their new ids."""
    if not deliveries:
        return []
    results = queue.send([_again(each, why) for each in deliveries])
    return [
        (each, result.message_id)
        for each, result in zip(deliveries, results, strict=True)
        if result.ok and result.message_id is not None
    ]


def _again(dead: Delivery, why: str) -> OutgoingMessage:
    # The same after a crash between sending and removing: SQS recognises it.
    told = hashlib.sha256(f"{dead.message_id}|{why}".encode()).hexdigest()
    return OutgoingMessage(body=dead.body, group=dead.group, dedup_id=told)


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
        self._change(
            key,
            "SET discarded = :none",
            "attribute_exists(agentId) AND attribute_not_exists(discarded)",
            {":none": {"M": {}}},
            {},
        )
        item = self._tables.call("get_item", AGENTS, Key=key, ConsistentRead=True).get("Item", {})
        highest = max(until, discarded_of(item).get(producer_id, -1))
        over = [name for name in self._over(item) if name != producer_id]
        names = {"#new": producer_id, **{f"#old{n}": name for n, name in enumerate(over)}}
        remove = f" REMOVE {', '.join(f'discarded.#old{n}' for n in range(len(over)))}" if over else ""
        entry = {"M": {"until": text(str(highest)), "at": text(now_text(self._clock.now()))}}
        self._change(
            key, f"SET discarded.#new = :entry{remove}", "attribute_exists(discarded)", {":entry": entry}, names
        )

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
            "update_item",
            AGENTS,
            Key=key,
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
            **more,
        )

    def _over(self, item: Any) -> list[str]:
        """Producers whose note is older than any message."""
        oldest = self._clock.now().astimezone(UTC) - _KEPT
        told = item.get("discarded", {}).get("M", {})
        return [name for name, entry in told.items() if datetime.fromisoformat(entry["M"]["at"]["S"]) < oldest]


_FITS: Final = 700_000


class Rejects:
    """Puts records and rows where they are seen."""

    def __init__(self, queue: Callable[[], Queue]) -> None:
        self._queue = queue

    def put(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        """Put them into the queue; those that could not be put are returned."""
        return [entry for entry in rejected if not self._is_put(entry)]

    def _is_put(self, entry: Rejected) -> bool:
        try:
            try:
                [result] = self._queue().send([OutgoingMessage(body=entry.to_json())])
            except MessageTooLarge:
                [result] = self._queue().send([OutgoingMessage(body=_cut(entry).to_json())])
        except PostroadError:
            return False
        return result.ok


def _cut(entry: Rejected) -> Rejected:
    """The record's beginning: SQS takes no more."""
    return msgspec.structs.replace(entry, reason=f"{entry.reason} (its data is cut)", data=entry.data[:_FITS])
