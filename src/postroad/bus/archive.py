"""The archive of a topic: everything that was published, kept in a stream, to be read and replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import msgspec

from postroad.backoff import Backoff
from postroad.blobs import BlobRef, Blobs
from postroad.bus.groups import Names, ensure, names_of
from postroad.bus.replay import (
    PREFIX,
    ArchivedEvent,
    Deliver,
    Reader,
    Reference,
    ReplayReport,
    Unreadable,
    deliverer,
    export,
    replay,
    selection,
)
from postroad.bus.tail import order_key
from postroad.errors import InvalidMessage, MessageTooLarge, NotPermitted, NotSupported, PostroadError, describe
from postroad.events import Codec, Envelope
from postroad.ports import Store
from postroad.queues import Delivery, Queue, QueueSpec
from postroad.streams import PutResult, Record, Stream
from postroad.telemetry import get_logger
from postroad.topics import Topic

_RETRY_SECONDS = (1.0, 5.0, 30.0, 120.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archiver:
    """Moves envelopes of one topic into one stream."""

    topic: str
    queue: Queue
    stream: Stream
    blobs: Blobs | None
    codec: Codec
    transaction: Callable[[], AbstractContextManager[None]] | None
    """Lets an ack and a put commit together; None where the store cannot."""

    def archive(self, deliveries: Sequence[Delivery]) -> int:
        """How many of these are archived. What cannot be stored now comes again; what never can is a dead letter."""
        packed: list[tuple[Delivery, Record]] = []
        for delivery in deliveries:
            try:
                packed.append((delivery, self._record(delivery)))
            except InvalidMessage as error:
                self._bury(delivery, error)
        if not packed:
            return 0
        if self.transaction is None or not self.stream.traits.joins_writes:
            return self._put_then_ack(packed)
        return self._together(packed, self.transaction())

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Leave these to another archiver."""
        if deliveries:
            self.queue.release(list(reversed(deliveries)))

    def _together(self, packed: Sequence[tuple[Delivery, Record]], transaction: AbstractContextManager[None]) -> int:
        """Ack and put in one commit: each event whose lease is still ours is archived exactly once."""
        with transaction:
            acks = self.queue.ack([delivery for delivery, _ in packed])
            records = [record for (_, record), ack in zip(packed, acks, strict=True) if ack.ok]
            for result in self.stream.put(records):
                if result.error is not None:
                    raise result.error
        return len(records)

    def _put_then_ack(self, packed: Sequence[tuple[Delivery, Record]]) -> int:
        try:
            results = self.stream.put([record for _, record in packed])
        except PostroadError as error:
            results = [PutResult(None, None, error) for _ in packed]
        outcomes = list(zip((delivery for delivery, _ in packed), results, strict=True))
        stored = [delivery for delivery, result in outcomes if result.ok]
        if stored:
            # A failed ack lets an event come again: it is archived twice and replayed once.
            self.queue.ack(stored)
        failed = [(delivery, result.error) for delivery, result in outcomes if result.error is not None]
        if failed:
            self._come_again([delivery for delivery, _ in failed], failed[0][1])
        if failed and not stored:
            raise failed[0][1]
        return len(stored)

    def _come_again(self, deliveries: Sequence[Delivery], error: Exception) -> None:
        receives = max(delivery.receive_count for delivery in deliveries)
        after = _RETRY_SECONDS[min(receives, len(_RETRY_SECONDS)) - 1]
        # Last to first, so that no later event of a group comes before an earlier one.
        self.queue.release(list(reversed(deliveries)), after=after, error=describe(error))

    def _record(self, delivery: Delivery) -> Record:
        envelope = self.codec.decode(delivery.body)
        data = bytes(delivery.body)
        if len(data) > self.stream.traits.max_record_bytes:
            data = self._by_reference(envelope, data)
        return Record(key=delivery.group or order_key(envelope), data=data)

    def _by_reference(self, envelope: Envelope, data: bytes) -> bytes:
        if self.blobs is None:
            raise MessageTooLarge(f"body: {len(data)} bytes is above the limit of the archive's stream", field="body")
        key = f"{PREFIX}topic={self.topic}/{envelope.created_at:%Y%m%d}/{envelope.event_id.hex}"
        return msgspec.json.encode(Reference(self.blobs.put(key, data)))

    def _bury(self, delivery: Delivery, error: InvalidMessage) -> None:
        reason = "undecodable" if error.field is None else "invalid"
        try:
            self.queue.reject([delivery], reason=reason, error=describe(error))
        except NotSupported:
            self._come_again([delivery], error)


_GROUP = "archive"
_MOST = 10
_LONGEST_RETENTION = 1_209_600.0
# Poison is rejected at once, so only a stream that does not answer is counted: it may be away for hours.
_MAX_RECEIVES = 100
_PRUNE_SECONDS = 3_600.0
# Any wait makes SQS look at all of its servers.
_ONCE_SECONDS = 0.1
_SLICE_SECONDS = 0.5
_POLL_SECONDS = 20.0


class Archive:
    """Made by `backend.archive(topic)`. Its group exists from then on: what is published waits for an archiver."""

    def __init__(self, store: Store, topic: str, *, fifo: bool = False, retention: float = 2_592_000) -> None:
        names = names_of(topic, fifo=fifo)
        names.check(_GROUP)
        self.topic = names.topic
        self._retention = retention
        self._store = store
        self._codec = Codec(store.registry, clock=store.clock)
        self._stream = store.stream(f"{names.base}-{_GROUP}", retention=retention)
        address = topic if topic.startswith("arn:") else names.topic
        self._queue = _subscribed(store, store.topic(address, fifo=names.fifo), names)
        self._blobs = store.blobs()
        self._reader = Reader(self._stream, self._codec, self._blobs, store.clock.now)
        self._archiver = Archiver(
            topic=names.base,
            queue=self._queue,
            stream=self._stream,
            blobs=self._blobs,
            codec=self._codec,
            transaction=store.transaction if store.joins_writes else None,
        )
        self._lifecycle = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._prune_at = 0.0

    def start(self) -> None:
        """Archive on a thread of its own."""
        with self._lifecycle:
            if self._thread is not None:
                raise RuntimeError("the archive is already started; stop it first")
            self._stopping = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stopping,), name="postroad-archive", daemon=True
            )
            self._thread.start()

    def stop(self, *, timeout: float = 5.0) -> None:
        """Finish what is in hand and take nothing more. Stopping twice changes nothing."""
        with self._lifecycle:
            thread, self._thread = self._thread, None
            self._stopping.set()
        if thread is not None:
            thread.join(timeout)

    def run_once(self) -> int:
        """Archive what waits now; how many events."""
        archived = 0
        wait = 0.0 if self._queue.traits.short_waits else _ONCE_SECONDS
        while deliveries := self._queue.receive(max_messages=_MOST, wait=wait):
            archived += self._archiver.archive(deliveries)
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
        """What the archive holds: each key in its order, different keys by the time of publishing."""
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
        """Give each event once to a function, a bus's handlers in this process, or a session's `reduce`."""
        wanted = selection(self._store.registry, since=since, until=until, types=types, session_id=session_id)
        return replay(
            self._reader.read(wanted),
            deliverer(to, self._codec),
            clock=self._store.clock,
            rate=rate,
            dry_run=dry_run,
        )

    def replay_untyped(
        self, deliver: Deliver, *, rate: float | None = None, dry_run: bool = False, **wanted: Any
    ) -> ReplayReport:
        """Give each event once to a function, without its class; what the function raises counts as a failure."""
        found = self._reader.read(selection(self._store.registry, **wanted))
        return replay(found, deliver, clock=self._store.clock, rate=rate, dry_run=dry_run)

    def export(self, blobs: Blobs, *, since: datetime | None = None, until: datetime | None = None) -> list[BlobRef]:
        """Write the envelopes as JSON Lines, each event once, into as many blobs as it takes."""
        events = self.events(since=since, until=until)
        return export(events, blobs, topic=self.topic)

    def _run(self, stopping: threading.Event) -> None:
        backoff = Backoff()
        wait = _SLICE_SECONDS if self._queue.traits.short_waits else _POLL_SECONDS
        while not stopping.is_set():
            try:
                deliveries = self._queue.receive(max_messages=_MOST, wait=wait)
                if stopping.is_set():
                    self._archiver.give_back(deliveries)
                    return
                self._archiver.archive(deliveries)
                self._prune()
                backoff.reset()
            except Exception as error:
                get_logger("bus").warning("archive_failed", topic=self.topic, error=str(error))
                stopping.wait(backoff.next())

    def _prune(self) -> None:
        """Remove, at most once an hour, large envelopes whose records the stream has forgotten."""
        now = self._store.clock.monotonic()
        if self._blobs is None or now < self._prune_at:
            return
        self._prune_at = now + _PRUNE_SECONDS
        with suppress(PostroadError):
            self._blobs.prune(f"{PREFIX}topic={self._archiver.topic}/", older_than=self._retention)

    def _readable(self, found: Iterator[ArchivedEvent | Unreadable]) -> Iterator[ArchivedEvent]:
        for each in found:
            if isinstance(each, ArchivedEvent):
                yield each
                continue
            fields = {"topic": self.topic, "sequence": each.sequence, "error": str(each.error)}
            get_logger("bus").warning("archive_unreadable", **fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def _subscribed(store: Store, topic: Topic, names: Names) -> Queue:
    """The archive's own queue. What exists already is used as it is."""
    name, dead = names.group(_GROUP), names.dead(_GROUP)
    ensure(store, QueueSpec(dead, fifo=names.fifo, retention=_LONGEST_RETENTION, redrive_allow=(name,)))
    queue = ensure(
        store,
        QueueSpec(name, fifo=names.fifo, retention=_LONGEST_RETENTION, dead_letter=dead, max_receives=_MAX_RECEIVES),
    )
    # Whoever may not subscribe has had it subscribed by those who may.
    with suppress(NotPermitted):
        topic.subscribe(queue)
    return queue
