"""Where queues are kept."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from postroad.errors import QueueNotFound
from postroad.queues.port import Queue, QueueStats
from postroad.queues.spec import QueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """A queue as it is in its store. `in_clear` says that the store keeps its messages unencrypted, where it tells."""

    spec: QueueSpec
    stats: QueueStats
    in_clear: bool = False


class QueueStore(Protocol):
    """Makes, finds and removes queues."""

    def create_queue(self, spec: QueueSpec) -> Queue: ...
    def update_queue(self, spec: QueueSpec) -> Queue: ...
    def delete_queue(self, name: str) -> None: ...
    def queue(self, name: str) -> Queue: ...
    def queue_spec(self, name: str) -> QueueSpec: ...
    def queues(self) -> list[str]: ...


class ListedQueues(QueueStore, Protocol):
    """A store that tells of many queues at once."""

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Look at these queues, by default at all, in the order of their names; one that is gone is left out."""
        ...

    def sources(self, dead_letters: str) -> list[str]:
        """Return the names of the queues that have this one as their dead-letter queue, sorted."""
        ...


def overviews_one_by_one(store: QueueStore, names: Iterable[str] | None) -> list[QueueOverview]:
    """The overviews of a store where asking costs nothing."""
    found = []
    for name in store.queues() if names is None else names:
        with suppress(QueueNotFound):
            found.append(QueueOverview(spec=store.queue_spec(name), stats=store.queue(name).stats()))
    return found


def sources_one_by_one(store: QueueStore, dead_letters: str) -> list[str]:
    """The sources of a dead-letter queue in a store where asking costs nothing."""
    return [name for name in store.queues() if store.queue_spec(name).dead_letter == dead_letters]
