"""The publisher of the ends of tasks and jobs on the bus `tasks`, from a stored position in the journal."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import msgspec

from postroad import failpoints
from postroad.bus import attributes_of
from postroad.errors import InvalidInput, NotSupported, PostroadError
from postroad.events import Codec
from postroad.items import ABSENT, Item
from postroad.journal import EVENT_CLASSES, Followed, JournalEvent, StoredJournal, whole
from postroad.ports import Store
from postroad.queues import OutgoingMessage
from postroad.tasks.messages import log_event
from postroad.tasks.threads import Role
from postroad.topics import Topic

TOPIC: Final = "tasks"
PUBLISHED: Final = ("Task Completed", "Task Failed", "Job Completed", "Job Failure Detected")
# How long other workers wait for one that began to publish and died.
_CLAIM_SECONDS = 5.0
_AT_ONCE = 10
_MOST_KNOWN = 10_000
# Looks that cost requests are taken less often.
_NEAR_SECONDS, _FAR_SECONDS = 1.0, 30.0


class _Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The stored progress: how far events were published, and which worker publishes the next ones."""

    position: str
    owner: str = ""
    until: float = 0.0
    """When the owner's claim ends, in seconds since 1970."""


class EventPublisher:
    """Publishes the ends of tasks and jobs that the journal records, each event at least once.

    It starts with the events recorded after the first publisher of the tenant was created. The position is stored after
    a publish, so a crash in between publishes again; the event id is that of the journal, which identifies repeats.
    """

    def __init__(self, backend: Store, *, tenant: str) -> None:
        self._backend = backend
        self._tenant = tenant
        self._items = backend.items()
        self._key = f"{tenant}/PUBLISHED#{TOPIC}"
        self._me = uuid.uuid4().hex
        self._known: dict[uuid.UUID, None] = {}
        self._codec = Codec(backend.registry, clock=backend.clock)
        for event_type in PUBLISHED:
            backend.registry.register(EVENT_CLASSES[event_type])
        if self._items.get(self._key) is None:
            start = _Progress(position=self._follow(None).position)
            self._items.put(self._key, msgspec.json.encode(start), expect=ABSENT)

    def run_once(self) -> int:
        """Publish all events recorded since the last time; return their number."""
        published = 0
        while True:
            item = self._items.get(self._key)
            progress = _Progress(position="") if item is None else msgspec.json.decode(item.value, type=_Progress)
            if progress.until > self._backend.clock.now().timestamp() and progress.owner != self._me:
                # Another worker publishes, or died while doing so.
                return published
            followed = self._follow(progress.position or None)
            if item is not None and not followed.events and followed.position == progress.position:
                return published
            done = self._step(item, progress, followed)
            if done is None:
                return published
            published += done
            if not followed.has_more:
                return published

    def close(self) -> None:
        """Publish the last events; after an error the next publisher does it."""
        with suppress(PostroadError):
            self.run_once()

    def role(self) -> Role:
        is_near = self._items.traits.joins_writes
        return Role("events", _NEAR_SECONDS if is_near else _FAR_SECONDS, self.run_once, self.close)

    def _step(self, item: Item | None, progress: _Progress, followed: Followed) -> int | None:
        """Publish and store the new position; return None if another worker was faster."""
        version = ABSENT if item is None else item.version
        new = [event for event in followed.events if event.event_id not in self._known]
        if new:
            until = self._backend.clock.now().timestamp() + _CLAIM_SECONDS
            claim = msgspec.structs.replace(progress, owner=self._me, until=until)
            claimed = self._items.put(self._key, msgspec.json.encode(claim), expect=version)
            if not claimed.ok or claimed.item is None:
                return None
            version = claimed.item.version
            for start in range(0, len(new), _AT_ONCE):
                self._publish(new[start : start + _AT_ONCE])
            failpoints.hit("events.after_publish")
        stored = self._items.put(self._key, msgspec.json.encode(_Progress(position=followed.position)), expect=version)
        return len(new) if stored.ok else None

    def _publish(self, events: Sequence[JournalEvent]) -> None:
        """Publish the events; an event that can never be published is logged and skipped."""
        messages = {event.event_id: message for event in events if (message := self._message(event)) is not None}
        results = self._topic.publish(list(messages.values())) if messages else []
        for event_id, result in zip(messages, results, strict=True):
            if isinstance(result.error, InvalidInput):
                log_event("task_event_dropped", event_id=str(event_id), error=str(result.error))
            elif result.error is not None:
                raise result.error
            self._known[event_id] = None
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _message(self, event: JournalEvent) -> OutgoingMessage | None:
        try:
            envelope = self._codec.wrap(
                msgspec.convert(whole(event).properties, EVENT_CLASSES[event.event_type]),
                publisher_id=event.context.get("workerId") or event.app,
                tenant_id=event.tenant_id,
                key=event.entity_id,
                event_id=event.event_id,
                created_at=datetime.fromtimestamp(event.timestamp / 1_000, UTC),
            )
            return OutgoingMessage(self._codec.encode(envelope), attributes_of(envelope))
        except (PostroadError, msgspec.ValidationError) as error:
            # Its blob is missing, or it is larger than any message.
            log_event("task_event_dropped", event_id=str(event.event_id), error=error)
            return None

    def _follow(self, position: str | None) -> Followed:
        journal = self._backend.journal()
        if not isinstance(journal, StoredJournal):
            raise NotSupported("this journal cannot be followed, so its events cannot be published")
        return journal.follow(self._tenant, PUBLISHED, position)

    @cached_property
    def _topic(self) -> Topic:
        return self._backend.topic(TOPIC)
