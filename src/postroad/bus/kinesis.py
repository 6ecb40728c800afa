"""The bus on a stream: Kinesis, or any other `Stream`."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from uuid import UUID

import msgspec

from postroad.arguments import check
from postroad.blobs import Blobs
from postroad.bus.config import SQSEventBusConfig, checked_config
from postroad.bus.endpoints import Outlet
from postroad.bus.local import EventBus
from postroad.bus.publisher import attributes_of
from postroad.bus.remote import RemoteEventBus
from postroad.bus.replay import Reader, ReplayReport, deliverer, replay, selection
from postroad.bus.stream_queue import StreamQueue
from postroad.bus.telemetry import BusHealth
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidMessage, InvalidName, PostroadError, TransportError
from postroad.events import Codec, EventRegistry, default_registry
from postroad.queues import PREFIX, Delivery, OutgoingMessage, Queue, References, SendResult, new_hex, read_reference
from postroad.receiving import CircuitBreakerConfig, GivenDeadLetters
from postroad.streams import Name, Stream

_LONGEST_LEASE = 3_600.0


class KinesisEventBus(RemoteEventBus):
    """Without a consumer every process gets what comes from its start on; workers of one consumer share the shards."""

    def __init__(
        self,
        *,
        stream: Stream,
        consumer: str | None = None,
        dead_letter: Queue | None = None,
        config: SQSEventBusConfig | None = None,
        local_bus: EventBus | None = None,
        blobs: Blobs | None = None,
        registry: EventRegistry | None = None,
        clock: Clock | None = None,
        breaker: CircuitBreakerConfig | None = None,
    ) -> None:
        _check(stream, consumer, dead_letter)
        config = checked_config(config)
        clock = SYSTEM_CLOCK if clock is None else clock
        codec = Codec(default_registry if registry is None else registry, clock=clock)
        large = blobs if config.overflow == "blobs" else None
        limit = min(config.max_message_bytes or stream.traits.max_record_bytes, stream.traits.max_record_bytes)
        self._queue = StreamQueue(
            stream,
            consumer=consumer,
            worker=uuid.uuid4().hex,
            lease_seconds=min(max(1.0, config.visibility_timeout_seconds), _LONGEST_LEASE),
            unpack=partial(_whole, blobs),
            clock=clock,
        )
        send = self._queue.send if large is None else _Overflowing(self._queue, large, clock, limit).send
        super().__init__(
            outlet=Outlet(name=stream.name, send=send, fifo=True, limit=limit if large is None else None),
            inlet=_StreamInlet(self._queue),
            dead_letters=None
            if dead_letter is None
            else _StreamDeadLetters(GivenDeadLetters(dead_letter, clock), codec),
            config=config,
            local_bus=local_bus,
            registry=registry,
            clock=clock,
            breaker=breaker,
            unhandled="ack" if consumer is None and config.unhandled == "release" else config.unhandled,
        )
        self._reader = Reader(stream, codec, blobs, clock.now, PREFIX)
        self._clock = clock

    def health(self) -> BusHealth:
        """How the bus is doing; a record that blocks its shard is the last error until it is handled."""
        health = super().health()
        blocked = self._queue.blocked()
        return health if blocked is None else replace(health, last_error=blocked)

    def replay(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        types: Collection[type[object] | str] | None = None,
        session_id: str | UUID | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> ReplayReport:
        """Read the stream again and give each event once to the handlers here; positions stay where they are."""
        codec = self._reader.codec
        wanted = selection(codec.registry, since=since, until=until, types=types, session_id=session_id)
        found = self._reader.read(wanted)
        return replay(found, deliverer(self, codec), clock=self._clock, rate=rate, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _StreamInlet:
    """The stream as the receiver takes it."""

    source: StreamQueue

    def open(self) -> None:
        self.source.open()

    def admit(self, types: Collection[str] | None) -> None:
        """A stream has no filter: every consumer reads everything."""

    def allow(self, attempts: int) -> None:
        """A stream delivers a record until it is settled."""

    def reopen(self, lost: Queue) -> bool:
        return False

    def close(self) -> None:
        self.source.close()


@dataclass(frozen=True, slots=True)
class _Overflowing:
    """Puts what is too large for a record into blobs, and the reference into the stream."""

    queue: StreamQueue
    blobs: Blobs
    clock: Clock
    limit: int

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        return References(self.blobs, self.clock, new_hex).send(messages, self.queue.send, limit=self.limit)


@dataclass(frozen=True, slots=True)
class _StreamDeadLetters:
    """Dead letters of a stream, whose records have no attributes and need not be text."""

    letters: GivenDeadLetters
    codec: Codec

    def __call__(self, queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
        told = msgspec.structs.replace(delivery, attributes=self._attributes(delivery.body))
        try:
            return self.letters(queue, told, reason=reason, error=error)
        except InvalidMessage:
            encoded = msgspec.structs.replace(
                told, body=base64.b64encode(delivery.body), attributes={"ContentEncoding": "base64"}
            )
            return self.letters(queue, encoded, reason=reason, error=error)

    def _attributes(self, body: bytes) -> dict[str, str]:
        try:
            return attributes_of(self.codec.decode(body))
        except PostroadError:
            return {}


def _whole(blobs: Blobs | None, data: bytes) -> bytes:
    """The event behind a reference; one whose blob is gone stays as it is, and is buried as what it is."""
    if blobs is None or not data.startswith(b'{"postroad_blob"'):
        return data
    try:
        return blobs.get(read_reference(data))
    except TransportError:
        raise
    except PostroadError:
        return data


def _has_verbs_of(port: type, thing: object) -> bool:
    """Whether it can stand for the port; isinstance refuses what delegates by `__getattr__` from Python 3.12 on."""
    return all(hasattr(thing, name) for name in vars(port) if not name.startswith("_"))


def _check(stream: object, consumer: str | None, dead_letter: object) -> None:
    if not _has_verbs_of(Stream, stream):
        raise ConfigurationError(
            f"stream: {type(stream).__name__} is not a stream", field="stream", remedy="Pass backend.stream(name)."
        )
    check(consumer, Name | None, "consumer", InvalidName)
    if dead_letter is not None and not _has_verbs_of(Queue, dead_letter):
        raise ConfigurationError(
            f"dead_letter: {type(dead_letter).__name__} is not a queue",
            field="dead_letter",
            remedy="Pass backend.queue(name).",
        )
