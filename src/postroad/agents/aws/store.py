"""Agents on AWS: Kinesis takes their events, DynamoDB keeps them, SQS delivers them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import msgspec

from postroad.agents.aws.fanout import DynamoFan, put_rejected
from postroad.agents.aws.pairs import DynamoPairs
from postroad.agents.aws.registry import DynamoRegistry
from postroad.agents.aws.release import ReleaseResult, release
from postroad.agents.aws.rows import Marker, Recipient, Row
from postroad.agents.aws.subscriptions import DynamoSubscriptions
from postroad.agents.model import AgentSettings, EventDelivery, LaneStats, not_found
from postroad.agents.port import FanOut
from postroad.agents.stream import StreamEvent
from postroad.agents.tables import DEAD_QUEUE, Tables, dead_letters, nobody_sends
from postroad.clock import Clock
from postroad.connections import AwsConnection
from postroad.errors import InvalidInput, PostroadError
from postroad.queues import Delivery, OutgoingMessage, PeekedMessage, Queue, QueueTraits, SendResult, SQSQueues

_SAMPLE: Final = 100
_VISIBILITY: Final = 60.0
SWEEP_EVERY: Final = 60.0


class AwsAgentStore:
    """The agents of one account and region; `rejected` opens the queue of rejects, and creates it if it is missing."""

    runs_here = False

    def __init__(
        self,
        connection: AwsConnection,
        queues: SQSQueues,
        rejected: Callable[[], Queue],
        settings: AgentSettings,
        clock: Clock,
        *,
        provision_stream: Callable[[], object],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._queues = queues
        self._rejected = rejected
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._provision_stream = provision_stream
        self._tables = Tables(connection)
        self.reject = partial(put_rejected, rejected)
        self.pairs = DynamoPairs(self._tables, clock, self.reject)
        self._fan = DynamoFan(self._tables, self.reject, retention=settings.retention, clock=clock, sleep=sleep)
        self._sends = False
        self._swept_at = float("-inf")
        self.registry = DynamoRegistry(
            self._tables, queues, visibility=settings.visibility, max_receives=settings.max_receives
        )
        self.subscriptions = DynamoSubscriptions(self._tables, self.registry, self.pairs, clock)

    def provision(self) -> None:
        self._tables.provision()
        self._provision_stream()
        self._queues.create_queue(dead_letters())
        self._rejected()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Send rows as soon as they are written: the position is stored after both, and both may be repeated."""
        self._sends = True
        try:
            yield
        finally:
            self._sends = False

    def fan_out(self, events: Sequence[StreamEvent]) -> FanOut:
        if not self._sends:
            return self._fan.write(events)
        written: list[Row] = []
        outcome = self._fan.write(events, written)
        result = self.release(written)
        unsent = {key for _, key in result.failed}
        stuck = {row.producer_id for row in written if row.key in unsent}
        return FanOut(
            outcome.written,
            released=result.sent,
            rejected=outcome.rejected + result.rejected,
            failed=(*outcome.failed, *(event for event in events if event.producer_id in stuck)),
        )

    def release_due(self) -> int:
        """Return 0: the hold-back window is over when rows are sent."""
        return 0

    def release(self, rows: Sequence[Row | Marker]) -> ReleaseResult:
        """Send rows to the agents' queues, and what is held for these agents."""
        delay = self._settings.dispatch_delay
        return release(rows, self.pairs, self, self._clock, dispatch_delay=delay, sleep=self._sleep)

    def drain(self) -> ReleaseResult:
        """Send what is held back or waits for a replay, as far as the queues accept it."""
        return self.release(self.pairs.waiting())

    def next_due_seconds(self) -> float | None:
        """Return None: rows wait in the publisher."""
        return None

    def sweep(self) -> None:
        """Do what the function `sweeper` does elsewhere; DynamoDB removes what has expired by itself."""
        now = self._clock.monotonic()
        if now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            self.drain()

    def listen(self) -> None:
        """Return None: Kinesis must be polled."""

    def queue(self, agent_id: str) -> Queue:
        return SQSAgentQueue(self._sqs(agent_id), lambda: self._recipient(agent_id).discarded)

    def send(self, recipient: Recipient, messages: Sequence[OutgoingMessage]) -> list[PostroadError | None]:
        """Send at most ten messages, of as many groups; return the error of each that failed."""
        try:
            results = self._queues.queue(recipient.queue_url, attempts=1).send(messages)
        except InvalidInput as error:
            # One message that SQS does not accept refuses the call: send the others without it.
            return [error] if len(messages) == 1 else [self.send(recipient, [each])[0] for each in messages]
        except PostroadError as error:
            return [error] * len(messages)
        errors = [None if result.ok else result.error or PostroadError("not sent") for result in results]
        return [each if isinstance(each, PostroadError | None) else PostroadError(str(each)) for each in errors]

    def stats(self, agent_id: str) -> LaneStats:
        stats = self._sqs(agent_id).stats()
        return LaneStats(stats.visible, stats.in_flight, stats.delayed, None, None, stats.oldest_age_seconds)

    def dead_letters(self, agent_id: str, limit: int, after: str | None = None) -> list[PeekedMessage]:
        """Return this agent's dead letters among a sample of the shared ones."""
        if after is not None:
            return []
        self._sqs(agent_id)
        sample = self._queues.queue(DEAD_QUEUE).peek(limit=_SAMPLE, force=True)
        return [message for message in sample if _field(message.body, "subscriberId") == agent_id][:limit]

    def deliveries(self, name: str) -> Sequence[EventDelivery]:
        """Return nothing: no index finds the rows of an event, and SQS does not say where a message is."""
        return ()

    def redrive(self, agent_id: str, limit: int | None) -> int:
        """Put this agent's dead letters behind what waits; leave those of others as they are."""
        own = self._sqs(agent_id)
        dead = self._queues.queue(DEAD_QUEUE)
        return _redrive(dead, own, lambda each: _field(each.body, "subscriberId") == agent_id, limit)

    def _recipient(self, agent_id: str) -> Recipient:
        found = self.pairs.recipients([agent_id]).get(agent_id)
        if found is None:
            raise not_found(agent_id)
        return found

    def _sqs(self, agent_id: str) -> Queue:
        return self._queues.queue(self._recipient(agent_id).queue_url)


class SQSAgentQueue:
    """An agent's queue that nobody else sends to."""

    def __init__(self, queue: Queue, discarded: Callable[[], Mapping[str, int]]) -> None:
        self._queue = queue
        self._discarded = discarded
        self.name = queue.name
        self.ack = queue.ack
        self.extend = queue.extend
        self.release = queue.release
        self.reject = queue.reject
        self.peek = queue.peek
        self.stats = queue.stats

    @property
    def traits(self) -> QueueTraits:
        # SQS is asked for them, which would cost a call each time a queue is opened.
        return self._queue.traits

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        raise nobody_sends(self.name)

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Receive messages, and ack those that were discarded after SQS had them: only a receive can remove them."""
        deadline = time.monotonic() + wait
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = self._queue.receive(max_messages=max_messages, wait=left, visibility=visibility)
            if not found or not (discarded := self._discarded()):
                return found
            unwanted = [each for each in found if _is_discarded(each.body, discarded)]
            if not unwanted:
                return found
            self._queue.ack(unwanted)
            if len(unwanted) < len(found):
                return [delivery for delivery in found if delivery not in unwanted]


def _redrive(dead: Queue, target: Queue, is_own: Callable[[Delivery], bool], limit: int | None) -> int:
    """Move the agent's own dead letters behind what waits for it, at most `limit`; return how many."""
    moved, held, seen_before = 0, list[Delivery](), set[str]()
    while limit is None or moved < limit:
        batch = dead.receive(max_messages=10, visibility=_VISIBILITY)
        if not batch:
            foreign = [each for each in held if each.message_id not in seen_before]
            if not foreign or not dead.stats().visible:
                break
            # Their groups are locked and hide what is behind them: send them to the end of the queue.
            sent = _send(dead, foreign, "behind")
            dead.ack([each for each, _ in sent])
            dead.release([each for each in foreign if each not in [before for before, _ in sent]])
            seen_before |= {message_id for _, message_id in sent}
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


def _send(queue: Queue, deliveries: Sequence[Delivery], why: str) -> list[tuple[Delivery, str]]:
    """Send them in order; return those that were accepted, and their new ids."""
    if not deliveries:
        return []
    # The deduplication id is the same after a crash between sending and removing, so that SQS recognises it.
    results = queue.send(
        [
            OutgoingMessage(
                body=each.body,
                group=each.group,
                dedup_id=hashlib.sha256(f"{each.message_id}|{why}".encode()).hexdigest(),
            )
            for each in deliveries
        ]
    )
    return [
        (each, result.message_id)
        for each, result in zip(deliveries, results, strict=True)
        if result.ok and result.message_id is not None
    ]


def _field(body: bytes, name: str) -> str:
    """Return a field of a message, or an empty text if the message is not one of ours."""
    try:
        return str(msgspec.json.decode(body, type=dict[str, Any]).get(name, ""))
    except msgspec.MsgspecError:
        return ""


def _is_discarded(body: bytes, discarded: Mapping[str, int]) -> bool:
    sequence = _field(body, "sequenceNumber")
    return (int(sequence) if sequence.isdecimal() else 0) <= discarded.get(_field(body, "agentId"), -1)
