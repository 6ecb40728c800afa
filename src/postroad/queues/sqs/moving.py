"""Moving messages on SQS: receive, decide, send, delete."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from postroad import failpoints
from postroad.arguments import check, whole_number
from postroad.errors import PostroadError
from postroad.queues.markers import REDRIVE
from postroad.queues.moving import Decide, Keep, Looked, Move, MoveStep
from postroad.queues.port import Delivery, OutgoingMessage, PeekedMessage
from postroad.queues.sqs.wire import MAX_BATCH, peeked_of, size_of

if TYPE_CHECKING:
    from postroad.queues.sqs.queue import SQSQueue

# How long messages that stay are kept out of the way, so that one run does not meet them twice.
_HOLD = 300.0
# A long poll asks all of SQS's servers: only its empty answer means that the queue's end was reached.
_WAIT = 1.0
# How far the clock of SQS may be from ours when it is asked which messages came after the beginning.
_SKEW = timedelta(minutes=5)


class Mover:
    """The steps of moving. Messages that stay are held until the walk ends, then released.

    On FIFO the messages of a group behind some that stay cannot be reached: SQS gives out none of a group in flight.
    """

    def __init__(self, queue: SQSQueue) -> None:
        self._queue = queue
        self._held: dict[str, dict[str, Delivery]] = {}

    def step(self, decide: Decide, *, cursor: str | None, limit: int) -> MoveStep:
        check(limit, whole_number(1, 10_000), "limit")
        held = {} if cursor is None else self._held.pop(cursor, {})
        moved: list[tuple[str, str]] = []
        looked_at = failed = 0
        with self._given_back_on_failure(held):
            while looked_at < limit:
                batch = self._new(held, limit - looked_at)
                if not batch:
                    return self._end(held, MoveStep(None, looked_at, tuple(moved), failed=failed))
                looked_at += len(batch)
                went, refused = self._move(decide, batch, held)
                moved += went
                failed += refused
        cursor = cursor or uuid.uuid4().hex
        self._held[cursor] = held
        return MoveStep(cursor, looked_at, tuple(moved), failed=failed)

    def look(self, *, cursor: str | None, limit: int) -> Looked:
        """See the next messages; each look counts as a receive."""
        seen: list[PeekedMessage] = []
        step = self.step(seen.append, cursor=cursor, limit=limit)
        return Looked(tuple(seen), step.cursor, step.in_flight)

    def stop(self, cursor: str | None) -> None:
        """Give back what the walk held."""
        if cursor is not None and (held := self._held.pop(cursor, None)):
            self._queue.release(list(held.values()))

    def take_out(self, keep: Keep) -> int:
        """Receive, let `keep` store, delete, until nothing is left that was there when this began."""
        latest = self._queue.clock.now() + _SKEW
        held: dict[str, Delivery] = {}
        removed = 0
        with self._given_back_on_failure(held):
            while batch := self._new(held, MAX_BATCH):
                if all(delivery.sent_at > latest for delivery in batch):
                    break
                keep([peeked_of(delivery) for delivery in batch])
                failpoints.hit("queue.purge.mid")
                removed += self._delete(batch, held)
        self._queue.release(list(held.values()))
        return removed

    def _delete(self, batch: Sequence[Delivery], held: dict[str, Delivery]) -> int:
        """How many are gone. What could not be deleted stays among the held, so that it is not met again at once."""
        gone = [delivery for delivery, result in zip(batch, self._queue.ack(batch), strict=True) if result.ok]
        for delivery in gone:
            del held[delivery.message_id]
        return len(gone)

    def _new(self, held: dict[str, Delivery], most: int) -> list[Delivery]:
        """The next messages that this walk has not met yet; none at the queue's end."""
        batch = self._queue.receive(max_messages=min(MAX_BATCH, most), wait=_WAIT, visibility=_HOLD)
        new = [delivery for delivery in batch if delivery.message_id not in held]
        held.update({delivery.message_id: delivery for delivery in batch})
        return new

    @contextmanager
    def _given_back_on_failure(self, held: dict[str, Delivery]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(PostroadError):
                self._queue.release(list(held.values()))
            raise

    def _end(self, held: dict[str, Delivery], step: MoveStep) -> MoveStep:
        in_flight = max(0, self._queue.stats().in_flight - len(held))
        self._queue.release(list(held.values()))
        return MoveStep(None, step.looked_at, step.moved, in_flight, step.failed)

    def _move(
        self, decide: Decide, batch: Sequence[Delivery], held: dict[str, Delivery]
    ) -> tuple[list[tuple[str, str]], int]:
        """Send on what is to go and delete what was sent; the rest stays among the held."""
        decided = [(delivery, decide(peeked_of(delivery))) for delivery in batch]
        going = [(delivery, move) for delivery, move in decided if move is not None]
        sent = self._send(going)
        failpoints.hit("queue.redrive.mid")
        self._queue.ack([delivery for delivery, _ in sent])
        for delivery, _ in sent:
            del held[delivery.message_id]
        return [(delivery.message_id, move.to) for delivery, move in sent], len(going) - len(sent)

    def _send(self, going: Sequence[tuple[Delivery, Move]]) -> list[tuple[Delivery, Move]]:
        sent: list[tuple[Delivery, Move]] = []
        for to in dict.fromkeys(move.to for _, move in going):
            target = self._queue.sibling(to)
            bound = [(delivery, move) for delivery, move in going if move.to == to]
            results = target.send([_outgoing(target, delivery, move) for delivery, move in bound])
            sent += [pair for pair, result in zip(bound, results, strict=True) if result.ok]
        return sent


def _outgoing(target: SQSQueue, delivery: Delivery, move: Move) -> OutgoingMessage:
    attributes = move.attributes
    if size_of(delivery.body, attributes) > target.spec.max_message_bytes:
        # A message as large as can be goes back without a marker rather than not at all.
        attributes = {name: value for name, value in attributes.items() if name != REDRIVE}
    # A step repeated after a crash is recognised by the message's id.
    dedup_id = delivery.message_id if target.name.endswith(".fifo") else None
    return OutgoingMessage(delivery.body, attributes, group=delivery.group, dedup_id=dedup_id)
