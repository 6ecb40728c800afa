"""Queues around a queue, for what no store does when it is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from postroad import Delivery, Queue
from postroad.bus.remote import RemoteEventBus
from postroad.queues import AckResult, QueueTraits
from postroad.receiving.leases import Held


class Around:
    """A queue that passes everything on."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


class LongPolling(Around):
    """Its poll brings its messages only when told, as a poll of SQS in progress may."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self.polling, self.answer = threading.Event(), threading.Event()

    @property
    def traits(self) -> QueueTraits:
        return replace(self.queue.traits, short_waits=False)

    def receive(self, **options: Any) -> list[Delivery]:
        self.polling.set()
        self.answer.wait(120)
        return self.queue.receive(**options)


class Failing(Around):
    """One of its verbs raises for as long as it has errors left."""

    def __init__(self, queue: Queue, verb: str, *errors: BaseException) -> None:
        super().__init__(queue)
        self._errors = list(errors)

        def call(*arguments: Any, **options: Any) -> Any:
            if self._errors:
                raise self._errors.pop(0)
            return getattr(queue, verb)(*arguments, **options)

        setattr(self, verb, call)


class Losing(Around):
    """Its leases are lost when told so: every extension of one of these messages says it."""

    def __init__(self, queue: Queue, lost: Callable[[Delivery], bool], error: Exception) -> None:
        super().__init__(queue)
        self._lost, self._error = lost, error

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        results = self.queue.extend(deliveries, seconds=seconds)
        return [
            AckResult(ok=False, error=self._error) if self._lost(delivery) else result
            for delivery, result in zip(deliveries, results, strict=True)
        ]


def leases_of(bus: RemoteEventBus) -> list[Held]:
    """Return what the receiver of the bus holds."""
    assert bus._receiver is not None
    return list(bus._receiver._leases._held.values())
