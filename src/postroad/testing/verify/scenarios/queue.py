"""`queue`: producers and consumers on one FIFO queue, with messages that fail once and some that always fail."""

from __future__ import annotations

from functools import partial

from postroad.queues import MAX_MESSAGE_BYTES, OutgoingMessage, Queue, QueueSpec
from postroad.testing.verify import audits, operators, workload
from postroad.testing.verify.history import History
from postroad.testing.verify.scenario import Client, Facts, Place, Role, Scenario

_QUEUE, _DEAD = "verify.fifo", "verify-dead.fifo"
_FACTS = Facts(subscriptions={_QUEUE: (_QUEUE,)}, ordered=True)


def _prepare(place: Place) -> None:
    workload.prepare_ledger(place)
    with place.backend() as backend:
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


def _produce(client: Client) -> None:
    with client.place.backend() as backend:
        queue = backend.queue(_QUEUE)
        client.at_work()
        for message in workload.messages(client):
            body = message.body
            outgoing = OutgoingMessage(message.raw, group=body.key, dedup_id=body.id)
            workload.publish(client, _QUEUE, message, partial(_send, queue, outgoing))


def _send(queue: Queue, message: OutgoingMessage) -> Exception | None:
    return queue.send([message])[0].error


def _consume(client: Client) -> None:
    with client.place.backend() as backend:
        workload.consume(client, backend.queue(_QUEUE), _QUEUE)


def _unsettled(place: Place) -> int:
    with place.backend() as backend:
        return workload.held(backend.queue(_QUEUE))


def _read_back(place: Place, history: History) -> None:
    workload.read_ledger(place, history)
    with place.backend() as backend:
        workload.read_rest(history, "dead", _QUEUE, backend.queue(_DEAD))
        workload.read_rest(history, "left", _QUEUE, backend.queue(_QUEUE))
    audits.audit_queue(place, history, _QUEUE, dead=_DEAD, deduplicates=True)


SCENARIO = Scenario(
    name="queue",
    facts=_FACTS,
    roles={
        "producer": Role(work=_produce, processes=2, sends=True),
        "consumer": Role(work=_consume, processes=3, holds=True),
        "looker": Role(work=partial(operators.look, queue_name=_QUEUE)),
        "operator": Role(work=operators.operate),
    },
    prepare=_prepare,
    unsettled=_unsettled,
    read_back=_read_back,
    weight=40,
    stores=("sqlite", "postgres", "aws"),
)
