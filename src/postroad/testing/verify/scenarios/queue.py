"""`queue`: producers and consumers on one FIFO queue, one who peeks at it, and one who redrives dead letters."""

from __future__ import annotations

import time

from postroad.errors import PostroadError
from postroad.queues import MAX_MESSAGE_BYTES, OutgoingMessage, QueueSpec
from postroad.testing.verify import audits, workload
from postroad.testing.verify.scenario import Client, Facts, History, Place, Role, Scenario
from postroad.testing.verify.workload import Message
from postroad.wiring import Backend

_QUEUE, _DEAD = "verify.fifo", "verify-dead.fifo"
_LOOK_SECONDS = 0.2
_REDRIVE_SECONDS, _REDRIVEN = 0.5, 5


def _prepare(place: Place, backend: Backend) -> None:
    backend.create_queue(QueueSpec(_DEAD, fifo=True))
    spec = QueueSpec(
        _QUEUE,
        fifo=True,
        visibility=place.visibility,
        max_message_bytes=MAX_MESSAGE_BYTES if place.store == "aws" else workload.LIMIT_BYTES,
        dead_letter=_DEAD,
        max_receives=workload.MAX_RECEIVES,
    )
    backend.create_queue(spec)


def _produce(client: Client, backend: Backend) -> None:
    queue = backend.queue(_QUEUE)

    def send(message: Message) -> Exception | None:
        outgoing = OutgoingMessage(message.raw, group=message.body.key, dedup_id=message.body.id)
        return queue.send([outgoing])[0].error

    workload.publish_all(client, _QUEUE, send)


def _look(client: Client, backend: Backend) -> None:
    """Peek at the queue now and then, and write down the receive counts; peeking must not change them."""
    queue = backend.queue(_QUEUE)
    client.at_work()
    while not client.stopping:
        if queue.traits.peeks_clean:
            for message in queue.peek(limit=20):
                seen = workload.read_body(message.body).id
                client.record("peek", sub=_QUEUE, id=seen, receive_count=message.receive_count)
        time.sleep(_LOOK_SECONDS)


def _operate(client: Client, backend: Backend) -> None:
    """Redrive ordered dead letters of its own now and then, and check that they come back in their order."""
    own = client.name.replace(".", "-")
    dead, back = f"{own}-dead.fifo", f"{own}-back.fifo"
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
            client.check("I9", order == sorted(order), f"redriven in the order {order}")
        time.sleep(_REDRIVE_SECONDS)


def _redriven(backend: Backend, dead: str, back: str, rounds: int) -> list[int]:
    """Send dead letters, redrive them, and return the order in which they are received."""
    # Only operators pay for this import; the others start again after each kill.
    from postroad.operations import redrive

    numbers = range(rounds * _REDRIVEN, (rounds + 1) * _REDRIVEN)
    backend.queue(dead).send([OutgoingMessage(str(number), group="g", dedup_id=str(number)) for number in numbers])
    redrive(backend, dead, to=back, reason="postroad verify", actor="postroad verify")
    queue, order = backend.queue(back), []
    while deliveries := queue.receive(max_messages=_REDRIVEN):
        order += [int(delivery.body) for delivery in deliveries]
        queue.ack(deliveries)
    return order


def _read_back(place: Place, backend: Backend, history: History) -> None:
    workload.read_rest(history, "dead", _QUEUE, backend.queue(_DEAD))
    workload.read_rest(history, "left", _QUEUE, backend.queue(_QUEUE))
    audits.audit_queue(place, backend, history, _QUEUE, dead=_DEAD, deduplicates=True)
    audits.audit_sigterm(place, history)


SCENARIO = Scenario(
    facts=Facts(subscriptions={_QUEUE: (_QUEUE,)}, ordered=True),
    roles={
        "producer": Role(work=_produce, processes=2, sends=True),
        "consumer": Role(
            work=lambda client, backend: workload.consume(client, backend.queue(_QUEUE), _QUEUE),
            processes=3,
            holds=True,
        ),
        "looker": Role(work=_look),
        "operator": Role(work=_operate),
    },
    prepare=_prepare,
    unsettled=lambda place, backend: workload.held(backend.queue(_QUEUE)),
    read_back=_read_back,
    weight=40,
    stores=("sqlite", "postgres", "aws"),
)
