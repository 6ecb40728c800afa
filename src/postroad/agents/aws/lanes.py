"""Lanes on AWS: FIFO queues of SQS, one dead-letter queue for all of them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from postroad.agents.aws.release import DynamoRelease
from postroad.agents.aws.rows import marker_item
from postroad.agents.aws.subscriptions import pair_key
from postroad.agents.aws.tables import Tables
from postroad.agents.aws.values import number, text
from postroad.agents.model import LaneStats
from postroad.agents.port import Registry
from postroad.agents.releasing import Recipient
from postroad.agents.rules import not_found
from postroad.agents.tables import DEAD_QUEUE, SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.clock import Clock
from postroad.errors import NotSupported, PostroadError
from postroad.queues import AckResult, Delivery, OutgoingMessage, PeekedMessage, Queue, QueueStats, SendResult
from postroad.queues.port import QueueTraits
from postroad.queues.sqs import SQSQueues

_STATE = {"#state": "state"}
_SAMPLE = 100


class AgentQueue:
    """An agent's queue that nobody else sends to."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.name = queue.name

    @property
    def traits(self) -> QueueTraits:
        return self._queue.traits

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        raise NotSupported(
            f'nobody sends to "{self.name}": events come from the stream',
            remedy="Publish the event under its agent's id, and subscribe this agent to it.",
        )

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        return self._queue.receive(max_messages=max_messages, wait=wait, visibility=visibility)

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        return self._queue.ack(deliveries)

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        return self._queue.extend(deliveries, seconds=seconds)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        return self._queue.release(deliveries, after=after, error=error)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        return self._queue.reject(deliveries, reason=reason, error=error)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        return self._queue.peek(limit=limit, after=after, force=force)

    def stats(self) -> QueueStats:
        return self._queue.stats()


class SQSLanes:
    """What waits for each agent, and what sends it there."""

    def __init__(
        self, tables: Tables, registry: Registry, queues: SQSQueues, release: DynamoRelease, clock: Clock
    ) -> None:
        self._tables = tables
        self._registry = registry
        self._queues = queues
        self._release = release
        self._clock = clock

    def queue(self, agent_id: str) -> Queue:
        """The agent's queue."""
        return AgentQueue(self._sqs(agent_id))

    def send(self, recipient: Recipient, messages: Sequence[OutgoingMessage]) -> list[PostroadError | None]:
        """Send at most ten messages, of as many groups; what became of each."""
        try:
            results = self._queues.queue(recipient.queue_url, attempts=1).send(messages)
        except PostroadError as error:
            return [error] * len(messages)
        return [None if result.ok else _as_error(result.error) for result in results]

    def stats(self, agent_id: str) -> LaneStats:
        """Count the queue, as far as SQS can tell."""
        stats = self._sqs(agent_id).stats()
        return LaneStats(stats.visible, stats.in_flight, stats.delayed, None, None, stats.oldest_age_seconds)

    def dead_letters(self, agent_id: str, limit: int, after: str | None = None) -> list[PeekedMessage]:
        """A sample of the shared dead letters, those of this agent."""
        if after is not None:
            return []
        self._sqs(agent_id)
        sample = self._queues.queue(DEAD_QUEUE).peek(limit=_SAMPLE, force=True)
        return [message for message in sample if _subscriber(message.body) == agent_id][:limit]

    def redrive(self, agent_id: str, limit: int | None) -> int:
        """Put this agent's dead letters behind what waits; those of others are left as they are."""
        target, dead = self._sqs(agent_id), self._queues.queue(DEAD_QUEUE)
        moved, foreign = 0, []
        while limit is None or moved < limit:
            batch = dead.receive(max_messages=10, visibility=60)
            if not batch:
                break
            own = [each for each in batch if _subscriber(each.body) == agent_id]
            own, rest = (own, []) if limit is None else (own[: limit - moved], own[limit - moved :])
            foreign += [each for each in batch if each not in own and each not in rest] + rest
            results = target.send([_again(each) for each in own]) if own else []
            sent = [each for each, result in zip(own, results, strict=True) if result.ok]
            dead.ack(sent)
            moved += len(sent)
            foreign += [each for each in own if each not in sent]
        dead.release(foreign)
        return moved

    def pause(self, listener_id: str, producer_id: str) -> bool:
        """Withhold this producer's events; what already reached the queue is delivered."""
        return self._set_state(listener_id, producer_id, "paused", "attribute_exists(producerId)")

    def resume(self, listener_id: str, producer_id: str) -> bool:
        """Deliver what was withheld: the pair drains when the publisher meets the marker."""
        is_held = "attribute_exists(producerId) AND attribute_exists(heldFrom)"
        if self._set_state(listener_id, producer_id, "draining", is_held):
            self._mark(listener_id, producer_id, f"resume-{uuid.uuid4().hex}")
            return True
        return self._set_state(listener_id, producer_id, "active", "attribute_exists(producerId)")

    def replay(self, listener_id: str, producer_id: str, since_ms: int) -> int | None:
        """Deliver this producer's rows again: the publisher reads them when it meets the marker."""
        answer = self._tables.call(
            "get_item", SUBSCRIBERS, Key=pair_key(listener_id, producer_id), ConsistentRead=True
        )  # fmt: skip
        if not answer.get("Item"):
            return None
        count = self._release.count_since(listener_id, producer_id, since_ms)
        replay_id = uuid.uuid4().hex
        self._mark(
            listener_id, producer_id, f"replay-{replay_id}", replayId=text(replay_id), since=number(since_ms)
        )  # fmt: skip
        return count

    def discard(self, listener_id: str, producer_id: str) -> None:
        """Nothing is kept unsent once a pair is gone: its rows expire."""

    def _sqs(self, agent_id: str) -> Any:
        record = self._registry.get(agent_id)
        if record is None or record.queue_url is None:
            raise not_found(agent_id)
        return self._queues.queue(record.queue_url)

    def _set_state(self, listener_id: str, producer_id: str, state: str, condition: str) -> bool:
        done = self._tables.conditional(
            "update_item", SUBSCRIBERS, Key=pair_key(listener_id, producer_id),
            UpdateExpression="SET #state = :state", ConditionExpression=condition,
            ExpressionAttributeNames=_STATE, ExpressionAttributeValues={":state": text(state)},
        )  # fmt: skip
        return done is not None

    def _mark(self, listener_id: str, producer_id: str, marker: str, **more: Any) -> None:
        item = marker_item(listener_id, producer_id, self._clock.now(), marker, **more)
        self._tables.call("put_item", SUBSCRIBER_EVENTS, Item=item)


def _again(dead: Delivery) -> OutgoingMessage:
    told = hashlib.sha256(f"{dead.message_id}|{uuid.uuid4().hex}".encode()).hexdigest()
    return OutgoingMessage(body=dead.body, group=dead.group, dedup_id=told)


def _subscriber(body: bytes) -> str | None:
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    return found.get("subscriberId")


def _as_error(error: Exception | None) -> PostroadError:
    return error if isinstance(error, PostroadError) else PostroadError(str(error))
