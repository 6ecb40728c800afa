"""All shelves of one memory under one lock, so that a message moves between them in one step."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection

from postroad.clock import Clock
from postroad.connections.own_memory import OwnMemory
from postroad.queues.shelf import Kept, Shelf
from postroad.queues.spec import QueueSpec, check_source_allowed, dead_letter_missing, queue_missing, settings_differ


class Shelves:
    """The shelves by queue name. Whoever calls holds `lock`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = OwnMemory()
        self.auto_deleted = 0
        self._shelves: dict[str, Shelf] = {}
        self._arrivals: dict[str, threading.Condition] = {}
        self._sequences = itertools.count(1)

    def names(self) -> list[str]:
        """The names of all queues, sorted."""
        self._delete_abandoned()
        return sorted(self._shelves)

    def open(self, spec: QueueSpec) -> None:
        """Make the shelf; one that stands with other settings is `QueueExists`."""
        self._delete_abandoned()
        if (shelf := self._shelves.get(spec.name)) is not None:
            _check_same(shelf.spec, spec)
        else:
            self._check_dead_letter(spec)
            shelf = self._shelves[spec.name] = Shelf(spec, self.clock)
        shelf.renewed_at = self.clock.monotonic()

    def change(self, spec: QueueSpec) -> None:
        """Give a shelf other settings."""
        shelf = self.get(spec.name)
        self._check_dead_letter(spec)
        shelf.spec, shelf.renewed_at = spec, self.clock.monotonic()
        shelf.retime()

    def delete(self, name: str) -> None:
        """Remove the shelf with what it holds; who waits for it learns so."""
        self.get(name)
        del self._shelves[name]
        self.arrival(name).notify_all()

    def get(self, name: str) -> Shelf:
        """The shelf, without what has expired, or `QueueNotFound`."""
        if (shelf := self.find(name)) is None:
            raise queue_missing(name)
        return shelf

    def find(self, name: str | None) -> Shelf | None:
        """The shelf, without what has expired, or None."""
        self._delete_abandoned()
        shelf = None if name is None else self._shelves.get(name)
        if shelf is not None:
            shelf.expire()
        return shelf

    def find_messages(self, ids: Collection[str]) -> dict[str, str]:
        """The name of the shelf that each of these messages stands on."""
        wanted = set(ids)
        return {
            kept.message_id: name
            for name, shelf in self._shelves.items()
            for kept in shelf.messages.values()
            if kept.message_id in wanted
        }

    def next_sequence(self) -> int:
        """A number above all before it, in every queue."""
        return next(self._sequences)

    def arrival(self, name: str) -> threading.Condition:
        """What a receiver of the queue waits on, under the one lock."""
        return self._arrivals.setdefault(name, threading.Condition(self.lock.lock))

    def transfer(self, kept: Kept, source: Shelf, to: Shelf, attributes: dict[str, str], *, keep_age: bool) -> None:
        """Take the message from one shelf to the end of the other; it counts as never received there."""
        source.remove(kept)
        to.put(
            Kept(
                message_id=kept.message_id,
                body=kept.body,
                attributes=attributes,
                group=kept.group,
                sequence=self.next_sequence(),
                sent_at=kept.sent_at if keep_age else self.clock.now(),
                visible_at=self.clock.monotonic(),
            )
        )
        self.arrival(to.spec.name).notify_all()

    def _check_dead_letter(self, spec: QueueSpec) -> None:
        if spec.dead_letter is None:
            return
        if (dead := self.find(spec.dead_letter)) is None:
            raise dead_letter_missing(spec.dead_letter)
        check_source_allowed(dead.spec, spec.name)

    def _delete_abandoned(self) -> None:
        now = self.clock.monotonic()
        for name, shelf in list(self._shelves.items()):
            limit = shelf.spec.auto_delete_after
            if limit is not None and now - shelf.renewed_at > limit:
                del self._shelves[name]
                self.auto_deleted += 1


def _check_same(existing: QueueSpec, wanted: QueueSpec) -> None:
    if differences := existing.differences(wanted):
        raise settings_differ(wanted.name, differences)
