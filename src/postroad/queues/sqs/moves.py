"""Moving messages on SQS: receive, decide, send, delete."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from postroad import failpoints
from postroad.arguments import check, whole_number
from postroad.errors import InvalidInput, NotSupported, OutcomeUnknown, PostroadError, RedriveRunning, Unavailable
from postroad.queues.markers import REDRIVE
from postroad.queues.port import (
    Decide,
    Delivery,
    Keep,
    Looked,
    Move,
    MoveStep,
    MoveTask,
    OutgoingMessage,
    PeekedMessage,
)
from postroad.queues.sqs.calls import SQSCalls
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


_RUNNING = ("RUNNING", "CANCELLING")
# How an endpoint says that it does not know a call. One that answers 500 to it is found out by asking twice.
_UNKNOWN_CALL = ("InvalidAction", "UnknownOperation", "UnsupportedOperation", "NotImplemented")


class MoveTasks:
    """The move tasks out of one queue."""

    def __init__(self, calls: SQSCalls, queue: SQSQueue) -> None:
        self._calls = calls
        self._queue = queue

    def start(self, to: str, *, per_second: int | None) -> str:
        """Begin to move everything to this queue; its handle."""
        source, destination = self._queue.arn, self._queue.sibling(to).arn
        if not source or not destination:
            raise NotSupported("the ARNs of the queues cannot be read, and a move task needs them")
        parameters: dict[str, Any] = {"SourceArn": source, "DestinationArn": destination}
        if per_second is not None:
            parameters["MaxNumberOfMessagesPerSecond"] = per_second
        try:
            answer = self._calls.call("start_message_move_task", self._queue.name, **parameters)
        except (InvalidInput, OutcomeUnknown, Unavailable) as error:
            return self._after_failure(error)
        return str(answer["TaskHandle"])

    def tasks(self) -> list[MoveTask]:
        """What SQS remembers, the newest first; nothing where it has no such call."""
        try:
            return self._list()
        except NotSupported:
            return []

    def _after_failure(self, error: PostroadError) -> str:
        """The handle of the task that an unanswered call has started after all; else why there is none."""
        running = next((task for task in self._list() if task.status in _RUNNING), None)
        if running is not None and isinstance(error, OutcomeUnknown) and running.task_handle is not None:
            return running.task_handle
        if running is not None:
            raise RedriveRunning(
                f"queue {self._queue.name!r} is being redriven by SQS already: {running.moved} moved"
            ) from error
        if isinstance(error, InvalidInput):
            # SQS moves out of queues only that are the dead letters of another one.
            raise NotSupported(str(error)) from error
        raise error

    def _list(self) -> list[MoveTask]:
        try:
            answer = self._calls.call(
                "list_message_move_tasks", self._queue.name, SourceArn=self._queue.arn, MaxResults=10
            )
        except (InvalidInput, OutcomeUnknown, Unavailable) as error:
            if isinstance(error, OutcomeUnknown) or any(name in error.message for name in _UNKNOWN_CALL):
                raise NotSupported(f"this endpoint has no move tasks: {error}") from error
            raise
        return [_task(result) for result in answer.get("Results") or ()]


def _task(result: dict[str, Any]) -> MoveTask:
    return MoveTask(
        task_handle=result.get("TaskHandle"),
        status=str(result.get("Status", "")),
        moved=int(result.get("ApproximateNumberOfMessagesMoved", 0)),
        to_move=result.get("ApproximateNumberOfMessagesToMove"),
    )
