"""The chat pipeline on emulated SQS, with the queues that its topology declares."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.notifications.people import Provider, missed, push_to
from tests.waiting import eventually

import postroad
from postroad.connections.aws import AwsConnection
from postroad.notifications import NotificationStore, NotificationWorker, RealtimeHook, TokenResult
from postroad.queues import OutgoingMessage
from postroad.queues.markers import read_dead
from postroad.queues.sqs import SQSQueues
from postroad.topology import QueueDecl, chat_topology
from postroad.wiring import Backend

pytestmark = pytest.mark.aws


@pytest.fixture
def backend(ministack_url: str) -> Iterator[Backend]:
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        yield backend


@pytest.fixture
def base(backend: Backend) -> str:
    """What the names of the chat's queues begin with."""
    topology = chat_topology(f"chat{uuid.uuid4().hex[:8]}", "test")
    queues = [each for each in topology.of("queue") if isinstance(each, QueueDecl)]
    for queue in sorted(queues, key=lambda each: each.spec.dead_letter is not None):
        backend.create_queue(queue.spec)
    return queues[0].spec.name.rpartition("-")[0].rpartition("-")[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NotificationStore]:
    with NotificationStore(f"sqlite:///{tmp_path}/chat.db") as store:
        yield store


def test_missed_messages_reach_devices_and_what_fails_rests_with_its_reason(
    backend: Backend, base: str, store: NotificationStore
) -> None:
    fcm, apns = Provider(), Provider()
    fcm.answers = {"odd": lambda token: TokenResult(token, "permanent", 400, "INVALID_ARGUMENT")}
    apns.down = TokenResult("", "retry", 503, "ServiceUnavailable")
    store.register_device("ann", "t1")
    hook = RealtimeHook(backend.queue(f"{base}-offline-queue"), is_online=lambda user: False, deliver=lambda m: False)
    pushes, letters = backend.queue(f"{base}-push-queue"), backend.queue(f"{base}-push-dlq")
    bodies = ["nonsense", push_to("odd").to_json(), push_to("apns:down").to_json()]
    worker = NotificationWorker(
        backend,
        store,
        push_queue=f"{base}-push-queue",
        offline_queue=f"{base}-offline-queue",
        fcm=fcm,
        apns=apns,
        wait=1.0,
        retry_delays=(0, 0),
        breaker_failures=1,
        concurrency=1,
    )
    stop = threading.Event()
    running = threading.Thread(target=worker.run, args=(stop,), daemon=True)

    for number in range(12):
        hook.on_message(missed(f"m{number}"))
    pushes.send([OutgoingMessage(body) for body in bodies])
    running.start()
    eventually(lambda: len({push_id for push_id, token in fcm.asked if token == "t1"}) == 12)
    eventually(lambda: letters.stats().visible == 2 and pushes.stats().delayed == 1)
    stop.set()
    running.join(120)

    assert not running.is_alive()
    assert len(store.pending("ann")) == 12
    markers = [read_dead(delivery.attributes) for delivery in letters.receive(wait=1.0)]
    assert {marker.reason for marker in markers if marker is not None} == {"invalid", "permanent"}
    assert backend.queue(f"{base}-offline-queue").stats().visible == 0
    assert max(fcm.shown.values()) == 1


def test_an_idle_worker_polls_for_twenty_seconds_and_gives_back_what_comes_during_a_stop(
    aws: AwsConnection, backend: Backend, base: str, store: NotificationStore
) -> None:
    class Watched:
        """The backend, with a client whose calls can be watched."""

        url, queue_spec = backend.url, backend.queue_spec
        queue = SQSQueues(aws).queue

    polls: list[dict[str, Any]] = []

    def note(params: dict[str, Any], **_: Any) -> None:
        polls.append(json.loads(params["body"]))

    queue, stop = backend.queue(f"{base}-offline-queue"), threading.Event()
    watched: Any = Watched()
    worker = NotificationWorker(watched, store, push_queue=None, offline_queue=f"{base}-offline-queue")
    running = threading.Thread(target=worker.run, args=(stop,), daemon=True)
    aws.sqs.meta.events.register("before-call.sqs.ReceiveMessage", note, unique_id="polls")
    try:
        running.start()
        eventually(lambda: len(polls) == 1)
        stop.set()
        eventually(lambda: not worker.receivers["offline"].is_running)
        queue.send([OutgoingMessage(missed("m1").to_json())])
        running.join(120)
    finally:
        aws.sqs.meta.events.unregister("before-call.sqs.ReceiveMessage", unique_id="polls")

    (delivery,) = queue.receive(wait=20.0)
    assert [poll["WaitTimeSeconds"] for poll in polls] == [20]
    assert delivery.receive_count == 2
    assert store.pending("ann") == []


@pytest.mark.slow
def test_a_stop_during_a_long_poll_takes_seconds_and_hides_nothing(
    backend: Backend, base: str, store: NotificationStore
) -> None:
    worker = NotificationWorker(backend, store, push_queue=None, offline_queue=f"{base}-offline-queue")
    queue, stop = backend.queue(f"{base}-offline-queue"), threading.Event()
    running = threading.Thread(target=worker.run, args=(stop,), daemon=True)

    running.start()
    eventually(lambda: worker.receivers["offline"].turned_at is not None)
    stop.set()
    running.join(120)
    queue.send([OutgoingMessage(missed("m1").to_json())])

    assert not running.is_alive()
    assert len(queue.receive(wait=5.0)) == 1
