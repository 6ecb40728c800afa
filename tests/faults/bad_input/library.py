"""What the surfaces of the Python API share: a store in memory, and verbs that the inputs name."""

from __future__ import annotations

from typing import Any

from tests.faults.bad_input.cases import Answer, State, messages, stored, without_messages

import postroad
from postroad.queues import OutgoingMessage, Queue, QueueSpec


class Library:
    """A part of the Python API on a store in memory: `{do = "send", …}` calls the method `send` with the rest."""

    def __init__(self) -> None:
        self.backend = postroad.connect("memory://")
        self.backend.create_queue(QueueSpec("good"))

    def give(self, input: Any) -> Answer:
        """Call the verb that the input names."""
        arguments = dict(input)
        answer: Answer = getattr(self, arguments.pop("do"))(**arguments)
        return answer

    def state(self) -> State:
        """Return all rows of all tables."""
        return stored(self.backend)

    def letters(self) -> tuple[State, dict[str, list[Any]]]:
        """Return the rows that no dead letter changes, and what each queue holds."""
        return without_messages(self.state()), messages(self.backend)

    def works(self) -> None:
        """Send a message, receive it and ack it."""
        send(self.backend.queue("good"), "good")
        [delivery] = self.backend.queue("good").receive()
        assert self.backend.queue("good").ack([delivery])[0].ok

    def close(self) -> None:
        """Close the store."""
        self.backend.close()


def send(queue: Queue, body: bytes | str, **more: Any) -> None:
    """Put a message into a queue as another program would."""
    [sent] = queue.send([OutgoingMessage(body, **more)])
    assert sent.ok, sent.error
