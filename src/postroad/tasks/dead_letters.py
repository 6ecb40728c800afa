"""The dead letters of tasks: each ends its run with one `Task Failed` and is removed."""

from __future__ import annotations

from typing import Literal

import msgspec

from postroad.errors import InvalidMessage
from postroad.journal import FAILED, Appends
from postroad.ports import Store
from postroad.queues import Delivery, Queue, legible, read_dead
from postroad.tasks.leases import Failure, Lease, TaskRecords
from postroad.tasks.messages import EventFactory, TaskMessage, log_event, open_queue, read, tenant_and_app, tenant_of
from postroad.tasks.threads import Role
from postroad.tasks.verdicts import CRASH, Drop, HandBack, decide, lines_logged

Handled = Literal["ended", "known", "stays"]
_ASIDE_SECONDS = 900.0
_VISIBILITY = 60.0
_AT_ONCE = 10


class DeadLetterHandler:
    """Turns dead letters into failed tasks. A dead letter that names no task stays in the queue.

    Args:
        backend: The store, as `connect()` returns it.
        queue: The name of the tasks queue; its dead letters are in `{queue}-dlq`.
        tenant_id: The tenant of messages that name none; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.
        journal: Where events go instead of the backend's journal, such as an `EventBridgeSender`.

    Raises:
        QueueNotFound: The queue does not exist on AWS; create it with `postroad task init`.

    Example:
        DeadLetterHandler(backend).run_once()
    """

    def __init__(
        self,
        backend: Store,
        *,
        queue: str = "tasks",
        tenant_id: str | None = None,
        app: str | None = None,
        journal: Appends | None = None,
    ) -> None:
        self._tenant, app = tenant_and_app(tenant_id, app)
        self._queue_name = queue
        self._letters: Queue = open_queue(backend, queue, ending="-dlq")
        self._records = TaskRecords(backend, journal)
        self._factory = EventFactory(app=app, environment=backend.stage, origin="dlq-processor", clock=backend.clock)

    def role(self) -> Role:
        """Return the role `dlq` of a worker."""
        # Where each look is a request that costs money, an idle worker makes few.
        return Role("dlq", 5.0 if self._letters.traits.short_waits else 60.0, self.run_once)

    def run_once(self) -> int:
        """Handle all dead letters in the queue; return how many runs were ended."""
        recorded = 0
        while deliveries := self._letters.receive(max_messages=_AT_ONCE, visibility=_VISIBILITY):
            for delivery in deliveries:
                try:
                    recorded += self.handle(delivery) == "ended"
                except Exception as error:
                    # It comes back by itself, and must not delay the others.
                    log_event("task_handling_failed", message_id=delivery.message_id, error=error)
        return recorded

    def handle(self, delivery: Delivery) -> Handled:
        """Handle the dead letter `delivery`; return whether it ended its run, its run had ended before, or it stays."""
        try:
            tenant, message = tenant_of(delivery, self._tenant), read(delivery)
        except InvalidMessage as error:
            log_event("task_letter_unreadable", message_id=delivery.message_id, error=error)
            self._letters.release([delivery], after=_ASIDE_SECONDS)
            return "stays"
        while (handled := self._try_to_end(delivery, tenant, message)) is None:
            continue
        return handled

    def _try_to_end(self, delivery: Delivery, tenant: str, message: TaskMessage) -> Handled | None:
        """Return the result of `handle`; None if the lease changed meanwhile."""
        held = self._records.read(tenant, message.request_id)
        now = self._factory.now_ms() / 1_000
        match decide(None if held is None else held.lease, run=message.run, now=now, max_attempts=1):
            case Drop(why):
                if why == "known" and held is not None and not self._records.record_owed(held):
                    return "stays"
                self._letters.ack([delivery])
                return "known"
            case HandBack(seconds):
                # A worker runs another copy of it, whose outcome counts.
                self._letters.release([delivery], after=seconds)
                return "stays"
        lease = Lease(run=message.run, queue=self._queue_name, name=message.name) if held is None else held.lease
        dead = read_dead(delivery.attributes)
        error = "received too often" if dead is None or not dead.error else dead.error
        failure = lease.failure or Failure(error=error, error_category="max-retries")
        is_crash = failure.error_category == CRASH
        event = self._factory.event(
            FAILED,
            message.task(tenant),
            token=lease.token or None,
            source="dlq",
            retryCount=lease.attempts,
            error=legible(f"Max retries exhausted: {failure.error}"),
            errorCategory=CRASH if is_crash else "max-retries",
            crash=failure.crash if is_crash else None,
            traceback=failure.traceback,
            lastLines=failure.last_lines,
        )

        def then(recorded: bool) -> None:
            if recorded:
                self._letters.ack([delivery])

        ended = msgspec.structs.replace(lease.settled(event), run=message.run)
        written = self._records.write(tenant, message.request_id, ended, [event], expect=held, then=then)
        if written.ok:
            log_event(
                "task_dead",
                request_id=message.request_id,
                run=message.run,
                error=event.properties["error"],
                attempt=lease.attempts,
                **lines_logged(failure.traceback, failure.last_lines),
            )
        return "ended" if written.ok else None
