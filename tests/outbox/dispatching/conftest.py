"""Dispatchers for the outboxes of the tests, which end with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from tests.outbox.dispatching.publishers import Recorder

from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher

QUICK = DispatcherConfig(backoff=(0.01,), jitter=0, poll=0.05, target_pause=0.05)
MakeDispatcher = Callable[..., OutboxDispatcher]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def dispatcher_of() -> Iterator[MakeDispatcher]:
    """Makes dispatchers whose metrics are their own; whatever runs is stopped in the end."""
    made: list[OutboxDispatcher] = []

    def make(
        outbox: Outbox, publisher: object, config: DispatcherConfig = QUICK, **options: object
    ) -> OutboxDispatcher:
        dispatcher = OutboxDispatcher(outbox, publisher, config, **{"metrics": CollectorRegistry(), **options})  # type: ignore[arg-type]
        made.append(dispatcher)
        return dispatcher

    yield make
    for dispatcher in made:
        dispatcher.stop()
