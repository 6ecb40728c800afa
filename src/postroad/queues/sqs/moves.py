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
from postroad.queues import port
from postroad.queues.markers import REDRIVE
from postroad.queues.port import Delivery, Move, MoveStep, MoveTask
from postroad.queues.sqs.calls import SQSCalls
from postroad.queues.sqs.wire import MAX_BATCH, peeked_of, size_of

if TYPE_CHECKING:
    from postroad.queues.sqs.queue import SQSQueue


# How long messages that do not move stay hidden, so that one walk does not receive them twice.
_HOLD = 300.0
# A long poll asks all servers of SQS: only its empty answer means that the queue's end is reached.
_WAIT = 1.0
# How far the clock of SQS may be from ours when messages are compared with the time of the beginning.
_SKEW = timedelta(minutes=5)


class Mover:
    """The steps of moving. Messages that do not move are held until the walk ends, then released.

    On FIFO the messages of a group behind held ones cannot be reached: SQS gives out none of a group in flight.
    """

    def __init__(self, queue: SQSQueue) -> None:
        self._queue = queue
        self._held: dict[str, dict[str, Delivery]] = {}

    def move(
        self, decide: port.Decide, *, cursor: str | None = None, limit: int = 500, only: Sequence[int] | None = None
    ) -> MoveStep:
        """Receive up to `limit` messages and move those that `decide` chooses: send, then delete."""
        if only is not None:
            raise NotSupported("SQS cannot find a message by its sequence")
        check(limit, whole_number(1, 10_000), "limit")
        held = {} if cursor is None else self._held.pop(cursor, {})
        moved: list[tuple[str, str]] = []
        looked_at = failed = 0
        with self._released_on_failure(held):
            while looked_at < limit:
                batch = self._new(held, limit - looked_at)
                if not batch:
                    in_flight = max(0, self._queue.stats().in_flight - len(held))
                    self._queue.release(list(held.values()))
                    return MoveStep(None, looked_at, tuple(moved), in_flight, failed)
                looked_at += len(batch)
                decided = [(delivery, decide(peeked_of(delivery))) for delivery in batch]
                going = [(delivery, move) for delivery, move in decided if move is not None]
                sent = self._send(going)
                failpoints.hit("queue.redrive.mid")
                self._queue.ack([delivery for delivery, _ in sent])
                for delivery, move in sent:
                    del held[delivery.message_id]
                    moved.append((delivery.message_id, move.to))
                failed += len(going) - len(sent)
        cursor = cursor or uuid.uuid4().hex
        self._held[cursor] = held
        return MoveStep(cursor, looked_at, tuple(moved), failed=failed)

    def look(self, *, cursor: str | None = None, limit: int = 500) -> port.Looked:
        """Receive up to `limit` messages without moving them; each look counts as a receive."""
        seen: list[port.PeekedMessage] = []
        step = self.move(seen.append, cursor=cursor, limit=limit)
        return port.Looked(tuple(seen), step.cursor, step.in_flight)

    def stop(self, cursor: str | None) -> None:
        if cursor is not None and (held := self._held.pop(cursor, None)):
            self._queue.release(list(held.values()))

    def take_out(self, keep: port.Keep) -> int:
        """Receive, pass to `keep` and delete, until nothing is left that was there when this began."""
        latest = self._queue.clock.now() + _SKEW
        held: dict[str, Delivery] = {}
        removed = 0
        with self._released_on_failure(held):
            while batch := self._new(held, MAX_BATCH):
                if all(delivery.sent_at > latest for delivery in batch):
                    break
                keep([peeked_of(delivery) for delivery in batch])
                failpoints.hit("queue.purge.mid")
                # What could not be deleted stays held, so that it is not received again at once.
                for delivery, result in zip(batch, self._queue.ack(batch), strict=True):
                    if result.ok:
                        del held[delivery.message_id]
                        removed += 1
        self._queue.release(list(held.values()))
        return removed

    def _new(self, held: dict[str, Delivery], most: int) -> list[Delivery]:
        """Receive messages that are new to this walk; none at the queue's end."""
        batch = self._queue.receive(max_messages=min(MAX_BATCH, most), wait=_WAIT, visibility=_HOLD)
        new = [delivery for delivery in batch if delivery.message_id not in held]
        held.update({delivery.message_id: delivery for delivery in batch})
        return new

    @contextmanager
    def _released_on_failure(self, held: dict[str, Delivery]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(PostroadError):
                self._queue.release(list(held.values()))
            raise

    def _send(self, going: Sequence[tuple[Delivery, Move]]) -> list[tuple[Delivery, Move]]:
        sent: list[tuple[Delivery, Move]] = []
        for to in dict.fromkeys(move.to for _, move in going):
            target = self._queue.sibling(to)
            bound = [(delivery, move) for delivery, move in going if move.to == to]
            results = target.send([_outgoing(target, delivery, move) for delivery, move in bound])
            sent += [pair for pair, result in zip(bound, results, strict=True) if result.ok]
        return sent


def _outgoing(target: SQSQueue, delivery: Delivery, move: Move) -> port.OutgoingMessage:
    attributes = move.attributes
    if size_of(delivery.body, attributes) > target.spec.max_message_bytes:
        # A message of the largest size goes back without a marker rather than not at all.
        attributes = {name: value for name, value in attributes.items() if name != REDRIVE}
    # A step repeated after a crash is recognised by the message's id.
    dedup_id = delivery.message_id if target.name.endswith(".fifo") else None
    return port.OutgoingMessage(delivery.body, attributes, group=delivery.group, dedup_id=dedup_id)


_RUNNING = ("RUNNING", "CANCELLING")
# The error codes of an endpoint that does not know a call; one that answers 500 is recognised by a second call.
_UNKNOWN_CALL = ("InvalidAction", "UnknownOperation", "UnsupportedOperation", "NotImplemented")


class MoveTasks:
    """The move tasks out of one queue."""

    def __init__(self, calls: SQSCalls, queue: SQSQueue) -> None:
        self._calls = calls
        self._queue = queue

    def start(self, to: str, *, per_second: int | None) -> str:
        """Start to move everything to this queue, and return the task's handle.

        Raises:
            RedriveRunning: Another task moves messages out of this queue.
            NotSupported: The endpoint has no such call, or not for these two queues.
        """
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
        """Return the moves out of this queue that SQS remembers, the newest first; none without such a call."""
        try:
            return self._list()
        except NotSupported:
            return []

    def _after_failure(self, error: PostroadError) -> str:
        """Return the handle of the task that an unanswered call has started after all, or raise the error."""
        running = next((task for task in self._list() if task.status in _RUNNING), None)
        if running is not None and isinstance(error, OutcomeUnknown) and running.task_handle is not None:
            return running.task_handle
        if running is not None:
            text = f"queue {self._queue.name!r} is being redriven by SQS already: {running.moved} moved"
            raise RedriveRunning(text) from error
        if isinstance(error, InvalidInput):
            # SQS moves messages only out of dead-letter queues.
            raise NotSupported(str(error)) from error
        raise error

    def _list(self) -> list[MoveTask]:
        try:
            source = {"SourceArn": self._queue.arn, "MaxResults": 10}
            answer = self._calls.call("list_message_move_tasks", self._queue.name, **source)
        except (InvalidInput, OutcomeUnknown, Unavailable) as error:
            if isinstance(error, OutcomeUnknown) or any(name in error.message for name in _UNKNOWN_CALL):
                raise NotSupported(f"this endpoint has no move tasks: {error}") from error
            raise
        return [
            MoveTask(
                task_handle=result.get("TaskHandle"),
                status=str(result.get("Status", "")),
                moved=int(result.get("ApproximateNumberOfMessagesMoved", 0)),
                to_move=result.get("ApproximateNumberOfMessagesToMove"),
            )
            for result in answer.get("Results") or ()
        ]
