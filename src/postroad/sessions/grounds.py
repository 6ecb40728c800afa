"""The little that main loops and their clients ask of a backend and of a bus that receives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from postroad.bus import EventBus
from postroad.bus.config import SQSEventBusConfig
from postroad.topics import Topic


class ReceivingBus(EventBus, Protocol):
    """A bus that hears other processes once its receiver runs."""

    @property
    def publisher_id(self) -> str: ...
    def start_receiver(self) -> None: ...
    def close(self) -> None: ...


class BusBackend(Protocol):
    """What gives buses and topics by name."""

    def bus(
        self,
        topic: str,
        group: str | None = None,
        *,
        attributes: Mapping[str, Collection[str]] | None = None,
        config: SQSEventBusConfig | None = None,
    ) -> ReceivingBus: ...

    def topic(self, name: str) -> Topic: ...


class Closable(Protocol):
    """What holds something until it is closed."""

    def close(self) -> None: ...


@contextmanager
def closed_on_failure(made: Closable) -> Iterator[None]:
    """Close what was made when its start fails: nobody else will."""
    try:
        yield
    except BaseException:
        made.close()
        raise
