"""Lanes on AWS: FIFO queues of SQS, one dead-letter queue for all of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from postroad.agents.aws.redrive import Discarding, redrive
from postroad.agents.aws.release import DynamoRelease
from postroad.agents.aws.rows import marker_item, number, text
from postroad.agents.aws.subscriptions import pair_key
from postroad.agents.aws.tables import Tables
from postroad.agents.model import LaneStats
from postroad.agents.outgoing import Recipient
from postroad.agents.rules import not_found
from postroad.agents.tables import DEAD_QUEUE, SUBSCRIBER_EVENTS, SUBSCRIBERS
from postroad.clock import Clock
from postroad.errors import InvalidInput, NotSupported, PostroadError
from postroad.queues import (
    AckResult,
    Delivery,
    OutgoingMessage,
    PeekedMessage,
    Queue,
    QueueStats,
    QueueTraits,
    SendResult,
    SQSQueues,
)

_STATE = {"#state": "state"}
_NOTHING = "attribute_not_exists(heldFrom) AND attribute_not_exists(replay)"
_SAMPLE = 100


class AgentQueue:
    """An agent's queue that nobody else sends to."""

    def __init__(self, queue: Queue, discarded: Callable[[], Mapping[str, int]]) -> None:
        self._queue = queue
        self._discarded = discarded
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
        deadline = time.monotonic() + wait
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = self._queue.receive(max_messages=max_messages, wait=left, visibility=visibility)
            unwanted = self._unwanted(found)
            if not unwanted:
                return found
            self._queue.ack(unwanted)
            if len(unwanted) < len(found):
                return [delivery for delivery in found if delivery not in unwanted]

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

    def _unwanted(self, found: Sequence[Delivery]) -> list[Delivery]:
        """What was discarded after SQS had it: nothing but a receive can take it out."""
        if not found or not (discarded := self._discarded()):
            return []
        return [each for each in found if _sequence(each.body) <= discarded.get(_text(each.body, "agentId"), -1)]


class SQSLanes:
    """What waits for each agent, and what sends it there."""

    def __init__(self, tables: Tables, queues: SQSQueues, release: DynamoRelease, clock: Clock) -> None:
        self._tables = tables
        self._discarding = Discarding(tables, clock)
        self._queues = queues
        self._release = release
        self._clock = clock

    def queue(self, agent_id: str) -> Queue:
        """The agent's queue."""
        return AgentQueue(self._sqs(agent_id), lambda: self._recipient(agent_id).discarded)

    def send(self, recipient: Recipient, messages: Sequence[OutgoingMessage]) -> list[PostroadError | None]:
        """Send at most ten messages, of as many groups; what became of each."""
        try:
            results = self._queues.queue(recipient.queue_url, attempts=1).send(messages)
        except InvalidInput as error:
            # One message that SQS does not take refuses the call: the others go without it.
            return [error] if len(messages) == 1 else [self.send(recipient, [each])[0] for each in messages]
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
        return [message for message in sample if _text(message.body, "subscriberId") == agent_id][:limit]

    def redrive(self, agent_id: str, limit: int | None) -> int:
        """Put this agent's dead letters behind what waits; those of others are left as they are."""
        own = self._sqs(agent_id)
        dead = self._queues.queue(DEAD_QUEUE)
        return redrive(dead, own, lambda each: _text(each.body, "subscriberId") == agent_id, limit)

    def pause(self, listener_id: str, producer_id: str) -> bool:
        """Withhold this producer's events; what already reached the queue is delivered."""
        return self._set_state(listener_id, producer_id, "paused", "attribute_exists(producerId)")

    def resume(self, listener_id: str, producer_id: str) -> bool:
        """Deliver what was withheld: the pair drains when the publisher meets the marker."""
        while not self._set_state(listener_id, producer_id, "active", f"attribute_exists(producerId) AND {_NOTHING}"):
            waits = "attribute_exists(heldFrom) OR attribute_exists(replay)"
            if self._set_state(listener_id, producer_id, "draining", waits):
                self._mark(listener_id, producer_id, f"resume-{uuid.uuid4().hex}")
                return True
            if not self._release.pairs(listener_id, {producer_id}).get(producer_id):
                return False
        return True

    def replay(self, listener_id: str, producer_id: str, since_ms: int) -> int | None:
        """Deliver this producer's rows again: the publisher reads them when it meets the marker."""
        pair = self._release.pairs(listener_id, {producer_id}).get(producer_id)
        if pair is None:
            return None
        sequences = [int(row.sequence) for row in self._release.since(listener_id, producer_id, since_ms)]
        if not sequences:
            return 0
        # One that waits already is part of this one.
        earliest = since_ms if pair.replay is None else min(since_ms, pair.replay.since_ms)
        replay = {
            "replayId": text(uuid.uuid4().hex),
            "since": number(earliest),
            "until": text(str(max(sequences))),
        }
        asked = self._tables.conditional(
            "update_item",
            SUBSCRIBERS,
            Key=pair_key(listener_id, producer_id),
            UpdateExpression="SET replay = :replay",
            ConditionExpression="attribute_exists(producerId)",
            ExpressionAttributeValues={":replay": {"M": replay}},
        )
        if asked is None:
            return None
        self._mark(listener_id, producer_id, f"replay-{replay['replayId']['S']}")
        return len(sequences)

    def discard(self, listener_id: str, producer_id: str) -> None:
        """Remove the rows of a pair, and let nothing of them be sent or given out any more."""
        rows = [(row.key, int(row.sequence)) for row in self._release.since(listener_id, producer_id, 0)]
        if not rows:
            return
        self._discarding.note(listener_id, producer_id, max(sequence for _, sequence in rows))
        self._discarding.remove(listener_id, [key for key, _ in rows])

    def _recipient(self, agent_id: str) -> Recipient:
        found = self._release.recipients([agent_id]).get(agent_id)
        if found is None:
            raise not_found(agent_id)
        return found

    def _sqs(self, agent_id: str) -> Queue:
        return self._queues.queue(self._recipient(agent_id).queue_url)

    def _set_state(self, listener_id: str, producer_id: str, state: str, condition: str) -> bool:
        done = self._tables.conditional(
            "update_item",
            SUBSCRIBERS,
            Key=pair_key(listener_id, producer_id),
            UpdateExpression="SET #state = :state",
            ConditionExpression=condition,
            ExpressionAttributeNames=_STATE,
            ExpressionAttributeValues={":state": text(state)},
        )
        return done is not None

    def _mark(self, listener_id: str, producer_id: str, marker: str) -> None:
        item = marker_item(listener_id, producer_id, self._clock.now(), marker)
        self._tables.call("put_item", SUBSCRIBER_EVENTS, Item=item)


def _text(body: bytes, name: str) -> str:
    """A field of a message; empty for what is none of ours."""
    try:
        return str(msgspec.json.decode(body, type=dict[str, Any]).get(name, ""))
    except msgspec.MsgspecError:
        return ""


def _sequence(body: bytes) -> int:
    told = _text(body, "sequenceNumber")
    return int(told) if told.isdecimal() else 0


def _as_error(error: Exception | None) -> PostroadError:
    return error if isinstance(error, PostroadError) else PostroadError(str(error))
