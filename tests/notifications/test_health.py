"""How a worker is, as its port tells it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.notifications.people import Provider, missed, push_to
from tests.notifications.test_worker import send, worker_for

from postroad.notifications import Autoscaler, NotificationStore, OfflineProcessor
from postroad.notifications.health import Health
from postroad.wiring import Backend


def health_of(backend: Backend, store: NotificationStore, *, now: float = 0.0, **options: Any) -> Health:
    autoscaler = options.pop("autoscaler", None) or Autoscaler()
    worker = worker_for(backend, store, **options)
    for receiver in worker.receivers.values():
        receiver._poller.turned_at = 0.0
    return Health(worker, autoscaler, monotonic=lambda: now)


@pytest.mark.parametrize(("wait", "now", "status"), [(0, 60.0, 200), (0, 60.1, 503), (20, 60.1, 503), (20, 59.0, 200)])
def test_a_worker_whose_consumers_do_not_turn_is_stalled(
    backend: Backend, store: NotificationStore, wait: float, now: float, status: int
) -> None:
    code, document = health_of(backend, store, now=now, wait=wait).short()

    assert code == status
    assert document.keys() == {"status", "service", "timestamp"}
    assert (document["status"], document["service"]) == ("ok" if status == 200 else "stalled", "workers")


def test_queues_that_answer_are_healthy(backend: Backend, store: NotificationStore) -> None:
    code, document = health_of(backend, store, fcm=Provider(), apns=Provider()).detailed()

    assert (code, document["status"]) == (200, "healthy")
    assert document["breakers"] == {"apns": "closed", "fcm": "closed"}
    for check in ("sqsPushQueue", "sqsOfflineQueue"):
        assert document["checks"][check]["status"] == "ok"
        assert document["checks"][check]["latency"] >= 0


def test_a_queue_that_does_not_answer_is_unhealthy(backend: Backend, store: NotificationStore) -> None:
    health = health_of(backend, store, fcm=Provider())
    backend.delete_queue("push-queue")

    code, document = health.detailed()

    assert (code, document["status"]) == (503, "unhealthy")
    assert document["checks"]["sqsPushQueue"]["status"] == "error"
    assert health.short()[0] == 200
    assert health.scaling()[0] == 503


def test_what_does_not_run_is_shown_as_disabled(backend: Backend, store: NotificationStore) -> None:
    without_queue = health_of(backend, store, offline_queue=None, fcm=Provider()).detailed()[1]
    without_sender = health_of(backend, store).detailed()[1]

    assert without_queue["checks"]["sqsOfflineQueue"] == {"status": "disabled"}
    assert without_sender["checks"]["sqsPushQueue"] == {"status": "disabled"}
    assert without_sender["breakers"] == {}


def test_a_provider_that_is_left_alone_is_shown(backend: Backend, store: NotificationStore) -> None:
    fcm = Provider()
    worker = worker_for(backend, store, fcm=fcm, breaker_failures=1)
    fcm.answers = {"t1": lambda token: (_ for _ in ()).throw(OSError())}
    send(backend, "push-queue", push_to("t1").to_json())

    worker.run_once()

    assert Health(worker, Autoscaler()).detailed()[1]["breakers"] == {"fcm": "open"}


def test_scaling_tells_what_waits_for_each_worker(backend: Backend, store: NotificationStore) -> None:
    send(backend, "push-queue", *["x"] * 250)

    code, document = health_of(backend, store, offline_queue=None).scaling(2)

    assert code == 200
    assert document["oldestAgeSeconds"].keys() == {"push", "offline"}
    assert {key: document[key] for key in ("current", "desired", "backlogPerTask")} == {
        "current": 2,
        "desired": 3,
        "backlogPerTask": {"push": 125.0, "offline": 0.0},
    }


def test_no_worker_is_wanted_only_when_the_outbox_is_empty_too(backend: Backend, store: NotificationStore) -> None:
    idle = health_of(backend, store, autoscaler=Autoscaler(min_tasks=0)).scaling(1)[1]
    store.register_device("ann", "t1")
    OfflineProcessor(store).handle(missed())

    waiting = health_of(backend, store, autoscaler=Autoscaler(min_tasks=0)).scaling(1)[1]

    assert (idle["desired"], waiting["desired"]) == (0, 1)
