"""Programs with few rights: what others have made is used as it is."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.bus.vocabulary import QUICK, Placed

from postroad import Backend, Queue, QueueSpec
from postroad.bus import Bus
from postroad.errors import NotPermitted


class Restricted:
    """A backend in which somebody may use everything and make nothing."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def create_queue(self, spec: QueueSpec) -> Queue:
        raise NotPermitted(f"no right to create {spec.name}")

    def topic(self, name: str, **options: Any) -> Any:
        return RestrictedTopic(self._backend.topic(name, **options))


class RestrictedTopic:
    """A topic that one may publish to and not change."""

    def __init__(self, topic: Any) -> None:
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topic, name)

    def subscribe(self, queue: Queue, **options: Any) -> None:
        raise NotPermitted("no right to subscribe")


def connected(store: Any, topic: str, group: str | None = None) -> Bus:
    bus = Bus(topic, group, config=QUICK)
    bus.connect(store, partial(store.topic, overflow="fail"))
    return bus


def test_a_group_that_was_made_by_others_needs_no_right_to_make(backend: Backend) -> None:
    backend.bus("orders", "workers", config=QUICK).close()

    with connected(Restricted(backend), "orders", "workers") as bus:
        bus.subscribe(Placed, lambda _: None)
        published = bus.publish(Placed(1))

        assert (published.ok, bus.receive_once()) == (True, [Placed(1)])


def test_a_group_that_is_missing_needs_it(backend: Backend) -> None:
    with pytest.raises(NotPermitted, match="orders--workers"):
        connected(Restricted(backend), "orders", "workers")


def test_an_own_queue_needs_it(backend: Backend) -> None:
    with connected(Restricted(backend), "orders") as bus:
        with pytest.raises(NotPermitted):
            bus.start_receiver()

        assert not bus.health().running
