"""The realtime hook: delivered, or queued exactly once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.notifications.people import missed

from postroad.errors import SendFailed, Unavailable
from postroad.notifications import OfflineMessage, RealtimeHook
from postroad.queues import Queue, SendResult
from postroad.wiring import Backend


def _raise(*_: object) -> bool:
    raise OSError("the socket is gone")


def bodies(queue: Queue) -> list[bytes]:
    return [delivery.body for delivery in queue.receive()]


def test_a_user_who_is_online_gets_the_message_at_once(backend: Backend) -> None:
    queue = backend.queue("offline-queue")
    delivered: list[OfflineMessage] = []

    def deliver(message: OfflineMessage) -> bool:
        delivered.append(message)
        return True

    hook = RealtimeHook(queue, is_online=lambda user: user == "ann", deliver=deliver)

    assert hook.on_message(missed()) == "delivered"
    assert (delivered, bodies(queue)) == ([missed()], [])


@pytest.mark.parametrize(
    ("is_online", "deliver"),
    [
        (lambda user: False, _raise),
        (lambda user: True, lambda message: False),
        (lambda user: True, lambda message: None),
        (lambda user: True, _raise),
        (_raise, lambda message: True),
    ],
    ids=["offline", "refused", "silent", "deliver-raises", "presence-raises"],
)
def test_a_message_that_was_not_delivered_is_queued_once(backend: Backend, is_online: Any, deliver: Any) -> None:
    queue = backend.queue("offline-queue")

    outcome = RealtimeHook(queue, is_online=is_online, deliver=deliver).on_message(missed())

    assert outcome == "queued"
    assert bodies(queue) == [missed().to_json().encode()]


@pytest.mark.parametrize("raises", [True, False])
def test_a_queue_that_refuses_is_told_to_the_caller(raises: bool) -> None:
    class Refusing:
        name = "offline-queue"

        def send(self, messages: Any) -> list[SendResult]:
            if raises:
                raise Unavailable("no queue today")
            return [SendResult(ok=False, error=Unavailable("no queue today"))]

    hook = RealtimeHook(Refusing(), is_online=lambda user: False, deliver=_raise)  # type: ignore[arg-type]  # a queue that sends only

    with pytest.raises(SendFailed, match="no queue today") as caught:
        hook.on_message(missed())

    assert isinstance(caught.value.__cause__, Unavailable)
