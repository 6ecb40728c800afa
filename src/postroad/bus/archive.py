"""The archive of a topic: all its events, kept in a stream, to be read and replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from postroad.backoff import Backoff
from postroad.blobs import BlobRef, Blobs
from postroad.bus.endpoints import dead_spec
from postroad.bus.groups import Names, ensure, names_of, open_topic
from postroad.bus.replay import ArchivedEvent, Reader, ReplayReport, Unreadable, deliverer, export, replay, selection
from postroad.bus.tail import order_key
from postroad.errors import InvalidMessage, MessageTooLarge, NotPermitted, NotSupported, PostroadError, describe
from postroad.events import Codec
from postroad.ports import Store
from postroad.queues import MAX_RETENTION, Delivery, Queue, QueueSpec
from postroad.streams import PutResult, Record
from postroad.telemetry import get_logger
from postroad.topics import Topic

_RETRY_SECONDS = (1.0, 5.0, 30.0, 120.0)
_GROUP = "archive"
_MOST = 10
# Bad messages are rejected at once, so only a stream that does not answer is counted; it may be away for hours.
_MAX_RECEIVES = 100
_PRUNE_SECONDS = 3_600.0
# With any wait, SQS asks all of its servers.
_ONCE_SECONDS = 0.1
_SLICE_SECONDS = 0.5
_POLL_SECONDS = 20.0


class Archive:
    """The archive of a topic, made by `backend.archive(topic)`.

    Its group exists from then on: events wait there until `start` or `run_once` archives them.

    Args:
        store: The backend.
        topic: The name of the topic, or its ARN on AWS.
        fifo: Whether the topic is FIFO.
        retention: Seconds for which events are kept, 30 days by default.

    Example:
        archive = backend.archive("orders")
        archive.start()
        archive.replay(session, since=datetime.now(UTC) - timedelta(hours=1))
    """

    def __init__(self, store: Store, topic: str, *, fifo: bool = False, retention: float = 2_592_000) -> None:
        names = names_of(topic, fifo=fifo)
        names.check(_GROUP)
        self.topic, self._base = names.topic, names.base
        self._retention = retention
        self._store = store
        self._codec = Codec(store.registry, clock=store.clock)
        self._stream = store.stream(f"{names.base}-{_GROUP}", retention=retention)
        self._queue = _subscribed(store, open_topic(store, topic, names), names)
        self._blobs = store.blobs()
        self._reader = Reader(self._stream, self._codec, self._blobs, store.clock.now)
        self._lifecycle = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._prune_at = 0.0

    def start(self) -> None:
        """Archive on another thread."""
        with self._lifecycle:
            if self._thread is not None:
                raise RuntimeError("the archive is already started; stop it first")
            self._stopping = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stopping,), name="postroad-archive", daemon=True
            )
            self._thread.start()

    def stop(self, *, timeout: float = 5.0) -> None:
        """Finish the current batch within `timeout` seconds and take no more. Stopping twice changes nothing."""
        with self._lifecycle:
            thread, self._thread = self._thread, None
            self._stopping.set()
        if thread is not None:
            thread.join(timeout)

    def run_once(self) -> int:
        """Archive the events that wait now, and return how many."""
        archived = 0
        wait = 0.0 if self._queue.traits.short_waits else _ONCE_SECONDS
        while deliveries := self._queue.receive(max_messages=_MOST, wait=wait):
            archived += self._archive(deliveries)
        self._prune()
        return archived

    def events(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        types: Collection[type[object] | str] | None = None,
        session_id: str | UUID | None = None,
    ) -> Iterator[ArchivedEvent]:
        """Yield archived events: each key in its order, different keys by the time of publishing.

        Args:
            since: Only events published from this time on.
            until: Only events published before this time.
            types: Only events of these classes or names.
            session_id: Only events of this session.
        """
        wanted = selection(self._store.registry, since=since, until=until, types=types, session_id=session_id)
        return self._readable(self._reader.read(wanted))

    def replay(
        self,
        to: object,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        types: Collection[type[object] | str] | None = None,
        session_id: str | UUID | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> ReplayReport:
        """Replay each event once.

        Args:
            to: A function that takes the event, a bus, whose handlers in this process run, or a session.
            since, until, types, session_id: Which events; as for `events`.
            rate: Events per second; by default as fast as possible.
            dry_run: Only count.
        """
        wanted = {"since": since, "until": until, "types": types, "session_id": session_id}
        return self.replay_untyped(deliverer(to, self._codec), rate=rate, dry_run=dry_run, **wanted)

    def replay_untyped(
        self,
        deliver: Callable[[ArchivedEvent], None],
        *,
        rate: float | None = None,
        dry_run: bool = False,
        **wanted: Any,
    ) -> ReplayReport:
        """Pass each event once, without its class, to a function.

        Args:
            deliver: The function; its errors count as failures.
            rate: The most events a second; None for any number.
            dry_run: Count the events and deliver none.
            wanted: Selects the events.
        """
        found = self._reader.read(selection(self._store.registry, **wanted))
        return replay(found, deliver, clock=self._store.clock, rate=rate, dry_run=dry_run)

    def export(self, blobs: Blobs, *, since: datetime | None = None, until: datetime | None = None) -> list[BlobRef]:
        """Write each event from `since` to `until` once to `blobs`, as JSON Lines, and return their references."""
        return export(self.events(since=since, until=until), blobs, topic=self.topic)

    def _run(self, stopping: threading.Event) -> None:
        backoff = Backoff()
        wait = _SLICE_SECONDS if self._queue.traits.short_waits else _POLL_SECONDS
        while not stopping.is_set():
            try:
                deliveries = self._queue.receive(max_messages=_MOST, wait=wait)
                if stopping.is_set():
                    if deliveries:
                        self._queue.release(list(reversed(deliveries)))
                    return
                self._archive(deliveries)
                self._prune()
                backoff.reset()
            except Exception as error:
                get_logger("bus").warning("archive_failed", topic=self.topic, error=str(error))
                stopping.wait(backoff.next())

    def _prune(self) -> None:
        """Remove, at most once an hour, the blobs of events that the stream no longer has."""
        now = self._store.clock.monotonic()
        if self._blobs is None or now < self._prune_at:
            return
        self._prune_at = now + _PRUNE_SECONDS
        with suppress(PostroadError):
            self._blobs.prune(f"{self._reader.prefix}topic={self._base}/", older_than=self._retention)

    def _readable(self, found: Iterator[ArchivedEvent | Unreadable]) -> Iterator[ArchivedEvent]:
        for each in found:
            if isinstance(each, ArchivedEvent):
                yield each
                continue
            fields = {"topic": self.topic, "sequence": each.sequence, "error": str(each.error)}
            get_logger("bus").warning("archive_unreadable", **fields)

    def _archive(self, deliveries: Sequence[Delivery]) -> int:
        """Return how many were archived. Events that cannot be stored now are retried; bad ones become dead letters."""
        packed: list[tuple[Delivery, Record]] = []
        for delivery in deliveries:
            try:
                packed.append((delivery, self._record(delivery)))
            except InvalidMessage as error:
                reason = "undecodable" if error.field is None else "invalid"
                try:
                    self._queue.reject([delivery], reason=reason, error=describe(error))
                except NotSupported:
                    self._release([delivery], error)
        if not packed:
            return 0
        joins = self._store.joins_writes and self._stream.traits.joins_writes
        return self._together(packed) if joins else self._put_then_ack(packed)

    def _together(self, packed: Sequence[tuple[Delivery, Record]]) -> int:
        """Ack and put in one commit: each event whose lease is still ours is archived exactly once."""
        with self._store.transaction():
            acks = self._queue.ack([delivery for delivery, _ in packed])
            records = [record for (_, record), ack in zip(packed, acks, strict=True) if ack.ok]
            for result in self._stream.put(records):
                if result.error is not None:
                    raise result.error
        return len(records)

    def _put_then_ack(self, packed: Sequence[tuple[Delivery, Record]]) -> int:
        try:
            results = self._stream.put([record for _, record in packed])
        except PostroadError as error:
            results = [PutResult(None, None, error) for _ in packed]
        outcomes = list(zip((delivery for delivery, _ in packed), results, strict=True))
        stored = [delivery for delivery, result in outcomes if result.ok]
        if stored:
            # If the ack fails, the event is delivered again: it is archived twice and replayed once.
            self._queue.ack(stored)
        failed = [(delivery, result.error) for delivery, result in outcomes if result.error is not None]
        if failed:
            self._release([delivery for delivery, _ in failed], failed[0][1])
            if not stored:
                raise failed[0][1]
        return len(stored)

    def _release(self, deliveries: Sequence[Delivery], error: Exception) -> None:
        receives = max(delivery.receive_count for delivery in deliveries)
        after = _RETRY_SECONDS[min(receives, len(_RETRY_SECONDS)) - 1]
        # From last to first, so that no later event of a group comes before an earlier one.
        self._queue.release(list(reversed(deliveries)), after=after, error=describe(error))

    def _record(self, delivery: Delivery) -> Record:
        envelope = self._codec.decode(delivery.body)
        data = bytes(delivery.body)
        if len(data) > self._stream.traits.max_record_bytes:
            if self._blobs is None:
                text = f"body: {len(data)} bytes is above the limit of the archive's stream"
                raise MessageTooLarge(text, field="body")
            key = f"topic={self._base}/{envelope.created_at:%Y%m%d}/{envelope.event_id.hex}"
            data = self._reader.reference(self._blobs, key, data)
        return Record(key=delivery.group or order_key(envelope), data=data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _subscribed(store: Store, topic: Topic, names: Names) -> Queue:
    """Return the archive's own queue, subscribed to the topic; an existing one is used as it is."""
    name, dead = names.group(_GROUP), names.dead(_GROUP)
    ensure(store, dead_spec(dead, names, name))
    queue = ensure(
        store, QueueSpec(name, fifo=names.fifo, retention=MAX_RETENTION, dead_letter=dead, max_receives=_MAX_RECEIVES)
    )
    # A process that may not subscribe the queue relies on one that may.
    with suppress(NotPermitted):
        topic.subscribe(queue)
    return queue
