"""The bus on a stream: Kinesis, or any other `Stream`."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from uuid import UUID

from msgspec.structs import replace as replaced

from postroad.arguments import check
from postroad.blobs import Blobs
from postroad.bus.config import BusConfig, checked_config
from postroad.bus.endpoints import Inlet, Outlet, Send
from postroad.bus.local import EventBus
from postroad.bus.publisher import attributes_of
from postroad.bus.remote import RemoteEventBus
from postroad.bus.replay import Reader, ReplayReport, deliverer, replay, selection
from postroad.bus.stream_queue import StreamQueue
from postroad.bus.telemetry import BusHealth
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import ConfigurationError, InvalidMessage, InvalidName, PostroadError, TransportError
from postroad.events import Codec, EventRegistry, default_registry
from postroad.queues import PREFIX, Delivery, Queue, References, new_hex
from postroad.receiving import CircuitBreakerConfig, GivenDeadLetters
from postroad.streams import Name, Stream

_LONGEST_LEASE = 3_600.0


class KinesisEventBus(RemoteEventBus):
    """The bus on a stream: `backend.stream(name)`, which is Kinesis on AWS.

    Without a consumer every process gets the events from its start on; the processes of one consumer share the shards.

    Args:
        stream: The stream.
        consumer: The name under which positions are stored; processes with the same one share the work.
        dead_letter: A queue for events that cannot be handled. Without one such an event blocks its shard.
        config, local_bus, blobs, registry, clock, breaker: As for `SQSEventBus`.

    Raises:
        ConfigurationError: `stream` is not a stream, or `dead_letter` is not a queue.
        InvalidName: The consumer has a name that is not valid.

    Example:
        bus = KinesisEventBus(stream=backend.stream("orders"), consumer="billing", dead_letter=backend.queue("dead"))
    """

    def __init__(
        self,
        *,
        stream: Stream,
        consumer: str | None = None,
        dead_letter: Queue | None = None,
        config: BusConfig | None = None,
        local_bus: EventBus | None = None,
        blobs: Blobs | None = None,
        registry: EventRegistry | None = None,
        clock: Clock | None = None,
        breaker: CircuitBreakerConfig | None = None,
    ) -> None:
        if not _has_methods_of(Stream, stream):
            raise ConfigurationError(
                f"stream: {type(stream).__name__} is not a stream", field="stream", remedy="Pass backend.stream(name)."
            )
        check(consumer, Name | None, "consumer", InvalidName)
        if dead_letter is not None and not _has_methods_of(Queue, dead_letter):
            why = f"dead_letter: {type(dead_letter).__name__} is not a queue"
            raise ConfigurationError(why, field="dead_letter", remedy="Pass backend.queue(name).")
        config = checked_config(config)
        clock = SYSTEM_CLOCK if clock is None else clock
        codec = Codec(default_registry if registry is None else registry, clock=clock)
        reader = self._reader = Reader(stream, codec, blobs, clock.now, PREFIX)
        large = blobs if config.overflow == "blobs" else None
        limit = min(config.max_message_bytes or stream.traits.max_record_bytes, stream.traits.max_record_bytes)
        queue = self._queue = StreamQueue(
            stream,
            consumer=consumer,
            worker=uuid.uuid4().hex,
            lease_seconds=min(max(1.0, config.visibility_timeout_seconds), _LONGEST_LEASE),
            unpack=partial(_whole, reader),
            clock=clock,
        )
        send: Send = queue.send
        if large is not None:
            send = partial(References(large, clock, new_hex).send, send=queue.send, limit=limit)
        super().__init__(
            outlet=Outlet(name=stream.name, send=send, fifo=True, limit=limit if large is None else None),
            inlet=Inlet(queue=lambda: queue, open=queue.open, close=queue.close),
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

    def health(self) -> BusHealth:
        """Return the state of the bus; a record that blocks its shard is the last error until it is handled."""
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
        """Read the stream again and deliver each event once to the handlers here; positions do not change.

        Args:
            since, until, types, session_id, rate, dry_run: As for `Archive.replay`.
        """
        codec = self._reader.codec
        wanted = selection(codec.registry, since=since, until=until, types=types, session_id=session_id)
        found = self._reader.read(wanted)
        return replay(found, deliverer(self, codec), clock=self._clock, rate=rate, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _StreamDeadLetters:
    """Dead letters of a stream, whose records have no attributes and need not be text."""

    letters: GivenDeadLetters
    codec: Codec

    def __call__(self, queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
        attributes: dict[str, str] = {}
        with suppress(PostroadError):
            attributes = attributes_of(self.codec.decode(delivery.body))
        try:
            return self.letters(queue, replaced(delivery, attributes=attributes), reason=reason, error=error)
        except InvalidMessage:
            attributes, body = {"ContentEncoding": "base64"}, base64.b64encode(delivery.body)
            return self.letters(queue, replaced(delivery, attributes=attributes, body=body), reason=reason, error=error)


def _whole(reader: Reader, data: bytes) -> bytes:
    """Return the event behind a reference; a reference whose blob is gone stays one and becomes a dead letter."""
    try:
        return reader.whole(data)
    except TransportError:
        raise
    except PostroadError:
        return data


def _has_methods_of(port: type, thing: object) -> bool:
    """Return whether it has the methods of the port; isinstance misses those of `__getattr__` from Python 3.12 on."""
    return all(hasattr(thing, name) for name in vars(port) if not name.startswith("_"))
