"""What tasks need of a backend, and for whom they act."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from postroad.blobs import Blobs
from postroad.clock import Clock
from postroad.events import EventRegistry
from postroad.items import Items
from postroad.journal import Journal
from postroad.queues import Queue, QueueSpec
from postroad.settings import load
from postroad.topics import Topic


class Ground(Protocol):
    """The few methods of a backend that tasks use."""

    clock: Clock
    registry: EventRegistry

    @property
    def stage(self) -> str: ...
    @property
    def stage_prefix(self) -> str: ...
    def queue(self, name: str) -> Queue: ...
    def create_queue(self, spec: QueueSpec) -> Queue: ...
    def topic(self, name: str) -> Topic: ...
    def items(self) -> Items: ...
    def journal(self) -> Journal: ...
    def blobs(self) -> Blobs | None: ...
    def transaction(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class Party:
    """The tenant and the app in whose name something is done."""

    tenant_id: str
    app: str


def wants_events(publish_events: bool | None) -> bool:
    """Whether events are published: as was told, else as the settings say."""
    return load().task_events if publish_events is None else publish_events


def party(tenant_id: str | None, app: str | None) -> Party:
    """Who was named, else who the settings name."""
    if tenant_id is not None and app is not None:
        return Party(tenant_id, app)
    settings = load()
    return Party(settings.tenant if tenant_id is None else tenant_id, settings.app if app is None else app)
