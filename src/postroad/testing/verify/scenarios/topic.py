"""`topic`: one topic with three subscriptions, one of them with a filter, while a fourth comes and goes."""

from __future__ import annotations

import time
from functools import partial

from postroad.errors import PostroadError
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.testing.verify import audits, workload
from postroad.testing.verify.scenario import Client, Facts, History, Place, Role, Scenario
from postroad.testing.verify.workload import Message
from postroad.topics import Topic
from postroad.wiring import Backend

_TOPIC, _DEAD = "verify", "dead"
_SUBS = ("all", "audit", "blue")
_STAY_SECONDS = 0.2


def _prepare(place: Place, backend: Backend) -> None:
    topic = backend.topic(_TOPIC)
    for sub in _SUBS:
        dead = f"{sub}-{_DEAD}"
        backend.create_queue(QueueSpec(dead))
        receives = workload.MAX_RECEIVES
        spec = QueueSpec(sub, visibility=place.visibility, dead_letter=dead, max_receives=receives)
        topic.subscribe(backend.create_queue(spec), filter={"colour": ["blue"]} if sub == "blue" else None)


def _produce(client: Client, backend: Backend) -> None:
    topic = backend.topic(_TOPIC)
    client.at_work()
    for message in workload.messages(client):
        colour = client.random.choice(("blue", "red"))
        workload.publish(client, f"{_TOPIC}:{colour}", message, partial(_publish, topic, colour))


def _publish(topic: Topic, colour: str, message: Message) -> Exception | None:
    return topic.publish([OutgoingMessage(message.raw, {"colour": colour})])[0].error


def _consume(client: Client, backend: Backend) -> None:
    sub = _SUBS[client.config.index % len(_SUBS)]
    workload.consume(client, backend.queue(sub), sub, batch=5)


def _come_and_go(client: Client, backend: Backend) -> None:
    """Subscribe a queue of its own and unsubscribe it again, which must not touch the others."""
    topic, client_queue = backend.topic(_TOPIC), f"guest-{client.name.replace('.', '-')}"
    client.at_work()
    while not client.stopping:
        try:
            queue = backend.create_queue(QueueSpec(client_queue))
            topic.subscribe(queue)
            time.sleep(_STAY_SECONDS)
            topic.unsubscribe(queue)
            backend.delete_queue(client_queue)
        except PostroadError:
            time.sleep(_STAY_SECONDS)


def _read_back(place: Place, backend: Backend, history: History) -> None:
    for sub in _SUBS:
        workload.read_rest(history, "dead", sub, backend.queue(f"{sub}-{_DEAD}"))
        workload.read_rest(history, "left", sub, backend.queue(sub))
        audits.audit_queue(place, backend, history, sub, dead=f"{sub}-{_DEAD}")


SCENARIO = Scenario(
    facts=Facts(subscriptions={f"{_TOPIC}:blue": _SUBS, f"{_TOPIC}:red": ("all", "audit")}, ordered=False),
    roles={
        "producer": Role(work=_produce, processes=1, sends=True),
        "consumer": Role(work=_consume, processes=3, holds=True),
        "guest": Role(work=_come_and_go),
    },
    prepare=_prepare,
    unsettled=lambda place, backend: sum(workload.held(backend.queue(sub)) for sub in _SUBS),
    read_back=_read_back,
    weight=35,
    stores=("sqlite", "postgres", "aws"),
)
