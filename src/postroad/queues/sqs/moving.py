"""Moving messages on SQS: receive, decide, send, delete."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from postroad import failpoints
from postroad.errors import PostroadError
from postroad.queues import rules
from postroad.queues.moving import Decide, Move, MoveStep
from postroad.queues.port import Delivery, OutgoingMessage
from postroad.queues.sqs.wire import MAX_BATCH, peeked_of

if TYPE_CHECKING:
    from postroad.queues.sqs.queue import SQSQueue

# How long messages that stay are kept out of the way, so that one run does not meet them twice.
_HOLD = 300.0
# A long poll asks all of SQS's servers: only its empty answer means that the queue's end was reached.
_WAIT = 1.0


class Mover:
    """The steps of moving. Messages that stay are held until the end is reached, then released.

    On FIFO the messages of a group behind some that stay cannot be reached: SQS gives out none of a group in flight.
    """

    def __init__(self, queue: SQSQueue) -> None:
        self._queue = queue
        self._held: dict[str, dict[str, Delivery]] = {}

    def step(self, decide: Decide, *, cursor: str | None, limit: int) -> MoveStep:
        rules.check_count(limit, "limit", 10_000)
        held = {} if cursor is None else self._held.pop(cursor, {})
        # A run that was given up leaves nothing behind: what it held comes back by itself.
        self._held.clear()
        moved: list[tuple[str, str]] = []
        looked_at = 0
        try:
            while looked_at < limit:
                batch = self._queue.receive(
                    max_messages=min(MAX_BATCH, limit - looked_at), wait=_WAIT, visibility=_HOLD
                )
                met_before = all(delivery.message_id in held for delivery in batch)
                held.update({delivery.message_id: delivery for delivery in batch})
                if met_before:
                    return self._end(held, looked_at, moved)
                looked_at += len(batch)
                moved += self._move(decide, batch, held)
        except BaseException:
            with suppress(PostroadError):
                self._queue.release(list(held.values()))
            raise
        cursor = cursor or uuid.uuid4().hex
        self._held[cursor] = held
        return MoveStep(cursor=cursor, looked_at=looked_at, moved=tuple(moved))

    def _end(self, held: dict[str, Delivery], looked_at: int, moved: list[tuple[str, str]]) -> MoveStep:
        in_flight = max(0, self._queue.stats().in_flight - len(held))
        self._queue.release(list(held.values()))
        return MoveStep(cursor=None, looked_at=looked_at, moved=tuple(moved), in_flight=in_flight)

    def _move(self, decide: Decide, batch: Sequence[Delivery], held: dict[str, Delivery]) -> list[tuple[str, str]]:
        """Send on what is to go and delete what was sent; the rest stays among the held."""
        decided = [(delivery, decide(peeked_of(delivery))) for delivery in batch]
        going = [(delivery, move) for delivery, move in decided if move is not None]
        sent = self._send(going)
        failpoints.hit("queue.redrive.mid")
        self._queue.ack([delivery for delivery, _ in sent])
        for delivery, _ in sent:
            del held[delivery.message_id]
        return [(delivery.message_id, move.to) for delivery, move in sent]

    def _send(self, going: Sequence[tuple[Delivery, Move]]) -> list[tuple[Delivery, Move]]:
        sent: list[tuple[Delivery, Move]] = []
        for to in dict.fromkeys(move.to for _, move in going):
            bound = [(delivery, move) for delivery, move in going if move.to == to]
            results = self._queue.sibling(to).send([_outgoing(to, delivery, move) for delivery, move in bound])
            sent += [pair for pair, result in zip(bound, results, strict=True) if result.ok]
        return sent


def _outgoing(to: str, delivery: Delivery, move: Move) -> OutgoingMessage:
    # A step repeated after a crash is recognised by the message's id.
    dedup_id = delivery.message_id if to.endswith(".fifo") else None
    return OutgoingMessage(delivery.body, move.attributes, group=delivery.group, dedup_id=dedup_id)
