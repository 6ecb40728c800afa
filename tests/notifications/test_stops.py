"""A worker that runs until it is stopped, and what it leaves to the next one."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.notifications.people import Provider, missed, push_to
from tests.notifications.test_worker import held, send, worker_for
from tests.waiting import eventually

from postroad.notifications import NotificationStore, OfflineProcessor, PushNotification, TokenResult
from postroad.wiring import Backend


def test_a_running_worker_moves_messages_until_it_is_stopped(backend: Backend, store: NotificationStore) -> None:
    store.register_device("ann", "t1")
    fcm = Provider()
    stop = threading.Event()
    worker = worker_for(backend, store, fcm=fcm)
    running = threading.Thread(target=worker.run, args=(stop,), daemon=True)
    running.start()
    send(backend, "offline-queue", *(missed(f"m{n}").to_json() for n in range(5)))

    eventually(lambda: len(fcm.asked) == 5)
    stop.set()
    running.join(120)

    assert not running.is_alive()
    assert held(backend, "push-queue") == held(backend, "offline-queue") == 0


def test_a_stop_gives_back_what_is_not_finished_in_time(
    backend: Backend, store: NotificationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.notifications.worker.STOP_SECONDS", 0.2)
    let_go = threading.Event()

    class Stuck(Provider):
        def send(self, push: PushNotification, token: str, *, push_id: str) -> TokenResult:
            answer = super().send(push, token, push_id=push_id)
            let_go.wait(120)
            return answer

    fcm = Stuck()
    stop = threading.Event()
    worker = worker_for(backend, store, fcm=fcm, concurrency=1)
    send(backend, "push-queue", *(push_to(f"t{n}").to_json() for n in range(3)))
    running = threading.Thread(target=worker.run, args=(stop,), daemon=True)
    running.start()
    eventually(lambda: len(fcm.asked) == 1)

    stop.set()
    running.join(120)

    stats = backend.queue("push-queue").stats()
    assert (stats.visible, stats.in_flight) == (3, 0)
    let_go.set()
    eventually(lambda: not _pushing())


def test_a_stop_that_waits_for_messages_uses_up_no_receives_of_pushes(
    backend: Backend, store: NotificationStore
) -> None:
    storing, let_go, stop = threading.Event(), threading.Event(), threading.Event()

    class Slow(OfflineProcessor):
        def handle_all(self, messages: Any) -> Any:
            storing.set()
            let_go.wait(120)
            return super().handle_all(messages)

    worker = worker_for(backend, store, fcm=Provider(), offline=Slow(store))
    running = threading.Thread(target=worker.run, args=(stop,), daemon=True)
    running.start()
    send(backend, "offline-queue", missed("m1").to_json())
    storing.wait(120)
    stop.set()
    eventually(lambda: worker._processor._stopping.is_set())

    send(backend, "push-queue", *(push_to(f"t{n}").to_json() for n in range(5)))
    time.sleep(0.3)
    let_go.set()
    running.join(120)

    assert [message.receive_count for message in backend.queue("push-queue").peek(limit=10)] == [0] * 5


def _pushing() -> bool:
    return any(thread.name == "postroad-notifications" for thread in threading.enumerate())
