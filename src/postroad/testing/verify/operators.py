"""Those who do not consume: one peeks at a queue, and one redrives dead letters and looks at their order."""

from __future__ import annotations

import time
from typing import Any

from postroad.errors import PostroadError
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.testing.verify.scenario import Client
from postroad.testing.verify.workload import read_body
from postroad.wiring import Backend

_LOOK_SECONDS = 0.2
_REDRIVE_SECONDS = 0.5
_MESSAGES = 5


def look(client: Client, queue_name: str) -> None:
    """Peek at a queue now and then, and write down the receive counts; peeking must not change them."""
    with client.place.backend() as backend:
        queue = backend.queue(queue_name)
        client.at_work()
        while not client.stopping:
            if queue.traits.peeks_clean:
                for message in queue.peek(limit=20):
                    seen: dict[str, Any] = {"id": read_body(message.body).id, "receive_count": message.receive_count}
                    client.record("peek", sub=queue_name, **seen)
            time.sleep(_LOOK_SECONDS)


def operate(client: Client) -> None:
    """Redrive ordered dead letters of its own now and then, and check that they come back in their order."""
    own = client.name.replace(".", "-")
    dead, back = f"{own}-dead.fifo", f"{own}-back.fifo"
    with client.place.backend() as backend:
        backend.create_queue(QueueSpec(dead, fifo=True))
        backend.create_queue(QueueSpec(back, fifo=True))
        client.at_work()
        rounds = 0
        while not client.stopping:
            rounds += 1
            try:
                order = _redriven(backend, dead, back, rounds)
            except PostroadError:
                pass
            else:
                ok = order == sorted(order)
                client.record("check", invariant="I9", ok=ok, detail=f"redriven in the order {order}")
            time.sleep(_REDRIVE_SECONDS)


def _redriven(backend: Backend, dead: str, back: str, rounds: int) -> list[int]:
    """Send dead letters, redrive them, and return the order in which they are received."""
    # Only operators pay for this import; the others start again after each kill.
    from postroad.operations import redrive

    numbers = range(rounds * _MESSAGES, (rounds + 1) * _MESSAGES)
    backend.queue(dead).send([OutgoingMessage(str(number), group="g", dedup_id=str(number)) for number in numbers])
    redrive(backend, dead, to=back, reason="postroad verify", actor="postroad verify")
    queue, order = backend.queue(back), []
    while deliveries := queue.receive(max_messages=_MESSAGES):
        order += [int(delivery.body) for delivery in deliveries]
        queue.ack(deliveries)
    return order
