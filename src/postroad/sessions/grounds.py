"""The little that main loops and their clients ask of a backend and of a bus that receives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
