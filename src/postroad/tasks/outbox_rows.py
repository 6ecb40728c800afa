"""Tasks in an outbox: rows of the caller's transaction, which the dispatcher submits instead of publishing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from postroad.errors import Conflict, InvalidTask, PostroadError, RowRejected
from postroad.events import TASK_ROW, DomainEvent
from postroad.tasks.messages import EventFactory, TaskMessage
from postroad.tasks.submissions import Submission, Submissions

if TYPE_CHECKING:
    from postroad.outbox import Outbox


class TaskRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The payload of a row: a submission that has not happened yet."""

    message: TaskMessage
    queue: str
    app: str
    due_ms: int | None = None
    """When a worker may receive it, in milliseconds; None for at once."""


class TaskRows:
    """The rows of tasks of one outbox. While it exists, dispatchers of this outbox submit them through it."""

    def __init__(
        self, outbox: Outbox, tenant: str, factory: EventFactory, submissions: Callable[[str], Submissions]
    ) -> None:
        self._outbox = outbox
        self._tenant = tenant
        self._factory = factory
        self._submissions = submissions
        outbox.submit_tasks = self.submit

    def add(self, connection: object, found: Sequence[tuple[Submission, str]]) -> None:
        """Record the submissions, each with its queue, in the transaction of the connection: all of them or none."""
        self._outbox.add_many(connection, [self._event(submission, queue) for submission, queue in found])

    async def add_async(self, connection: object, submission: Submission, queue: str) -> None:
        """Record a submission on a connection that is awaited."""
        await self._outbox.add_async(connection, self._event(submission, queue))

    def submit(self, events: Sequence[DomainEvent]) -> list[PostroadError | None]:
        """Submit what the rows hold; return for each the error, or None. A row that is submitted again is harmless."""
        found = [self._read(event) for event in events]
        readable = [each for each in found if isinstance(each, tuple)]
        if len(readable) == len(found) > 1 and len({queue for _, queue in readable}) == 1:
            # One commit for all; if that fails, each for itself.
            with suppress(PostroadError):
                self._submissions(readable[0][1]).begin_many([submission for submission, _ in readable])
                return [None] * len(found)
        return [self._submit(each) for each in found]

    def _submit(self, found: tuple[Submission, str] | PostroadError) -> PostroadError | None:
        if isinstance(found, PostroadError):
            return found
        try:
            self._submissions(found[1]).begin(found[0])
        except Conflict as error:
            # No later try can succeed.
            return RowRejected(error.message)
        except PostroadError as error:
            return error
        return None

    def _event(self, submission: Submission, queue: str) -> DomainEvent:
        due = None if not submission.delay else submission.pending.timestamp + round(submission.delay * 1_000)
        row = TaskRow(message=submission.message, queue=queue, app=submission.app, due_ms=due)
        # Each task has a key of its own, so that none waits for another.
        return DomainEvent(
            type=TASK_ROW,
            key={"requestId": submission.message.request_id},
            payload=msgspec.to_builtins(row),
            tenant_id=submission.tenant,
        )

    def _read(self, event: DomainEvent) -> tuple[Submission, str] | PostroadError:
        try:
            row = msgspec.convert(event.payload, TaskRow)
        except msgspec.ValidationError as error:
            return InvalidTask(f"payload: {error}", field="payload")
        left = 0.0 if row.due_ms is None else max(0.0, (row.due_ms - self._factory.now_ms()) / 1_000)
        factory = replace(self._factory, app=row.app)
        return Submission.of(row.message, event.tenant_id or self._tenant, factory, delay=left), row.queue
