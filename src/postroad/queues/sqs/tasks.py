"""SQS's own move tasks: the whole of a dead-letter queue, at a rate, unmarked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.errors import InvalidInput, NotSupported, OutcomeUnknown, PostroadError, RedriveRunning, Unavailable
from postroad.queues.moving import MoveTask
from postroad.queues.sqs.calls import SQSCalls

if TYPE_CHECKING:
    from postroad.queues.sqs.queue import SQSQueue

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
