"""Threads of a consumer come and go, and no message waits for one that is about to end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tests.notifications.test_worker import send
from tests.waiting import eventually

from postroad.notifications.intake import Intake
from postroad.notifications.telling import Teller
from postroad.notifications.verdicts import Ack, Verdict
from postroad.queues import AckResult, Delivery
from postroad.queues.burying import OwnDeadLetters
from postroad.queues.tally import Tally
from postroad.wiring import Backend


def test_a_message_that_comes_while_a_thread_ends_is_handled(backend: Backend) -> None:
    queue = backend.queue("push-queue")
    acking, go_on = threading.Event(), threading.Event()
    judged: list[bytes] = []

    class SlowAcks:
        name, traits, receive, extend, release = queue.name, queue.traits, queue.receive, queue.extend, queue.release

        def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
            acking.set()
            go_on.wait(10)
            return queue.ack(deliveries)

    def judge(deliveries: Sequence[Delivery]) -> list[Verdict]:
        judged.extend(delivery.body for delivery in deliveries)
        return [Ack("pushed")] * len(deliveries)

    slow: Any = SlowAcks()
    intake = Intake(
        slow, judge, batch=10, concurrency=1, visibility=None, dead_letters=OwnDeadLetters(), tally=Tally(),
        teller=Teller("push-queue"),
    )  # fmt: skip
    send(backend, "push-queue", "first")
    intake.receive(0.0)
    assert acking.wait(10)
    send(backend, "push-queue", "second")

    intake.receive(0.0)

    eventually(lambda: judged == [b"first", b"second"])
    go_on.set()
    assert intake.wait_until_idle(10)
    assert queue.stats().visible == queue.stats().in_flight == 0
