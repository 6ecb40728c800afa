"""Queues, and the addresses and names under which they are opened."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.faults.bad_input.cases import Answer, attempt, described
from tests.faults.bad_input.library import Library, send

import postroad
from postroad import failpoints
from postroad.queues import OutgoingMessage, QueueSpec


class Queues(Library):
    """A standard queue `work` with dead letters and one message, and a FIFO queue `lined.fifo`."""

    def __init__(self) -> None:
        super().__init__()
        self.backend.create_queue(QueueSpec("dead"))
        self.backend.create_queue(QueueSpec("dead.fifo", fifo=True))
        self.backend.create_queue(QueueSpec("work", dead_letter="dead", max_message_bytes=1_048_576))
        self.backend.create_queue(QueueSpec("lined.fifo", fifo=True))
        send(self.backend.queue("work"), "before")

    def send(self, queue: str = "work", **message: Any) -> Answer:
        """Send one message, without the help of blobs; a result that is not ok counts as an error."""

        def call() -> object:
            [result] = self.backend.queue(queue, overflow="fail").send([OutgoingMessage(**({"body": "x"} | message))])
            if result.error is not None:
                raise result.error
            return result

        return attempt(call)

    def create(self, **spec: Any) -> Answer:
        """Make a queue."""
        return attempt(lambda: self.backend.create_queue(QueueSpec(**spec)))

    def open(self, name: str) -> Answer:
        """Open a queue by its name."""
        return attempt(lambda: self.backend.queue(name).stats())

    def receive(self, **options: Any) -> Answer:
        """Receive from a queue."""
        return attempt(lambda: self.backend.queue("work").receive(**options))

    def peek(self, **options: Any) -> Answer:
        """Look at a queue."""
        return attempt(lambda: self.backend.queue("work").peek(**options))

    def settle(self, verb: str, receipt: str = "rubbish", **options: Any) -> Answer:
        """Settle a delivery whose receipt was never given out."""
        queue = self.backend.queue("work")
        now = datetime.now(UTC)
        delivery = postroad.Delivery(
            message_id="m",
            body=b"",
            attributes={},
            group=None,
            receipt=receipt,
            receive_count=1,
            sent_at=now,
            first_received_at=now,
            sequence=None,
        )

        def call() -> object:
            [result] = getattr(queue, verb)([delivery], **options)
            if result.error is not None:
                raise result.error
            return result

        return attempt(call)

    def connect(self, url: Any) -> Answer:
        """Open a store."""
        return attempt(lambda: postroad.connect(url).close())

    def failpoint(self, text: str) -> Answer:
        """Set failpoints."""
        return attempt(lambda: failpoints.load(text))

    def used_after_close(self) -> Answer:
        """Use a backend that was closed."""
        backend = postroad.connect("memory://")
        queue = backend.create_queue(QueueSpec("q"))
        backend.close()
        try:
            [result] = queue.send([OutgoingMessage("x")])
        except postroad.PostroadError as error:
            return Answer("error", type(error).__name__, described(error))
        return Answer("accepted", None, repr(result))
