"""From a topic's queue into the archive's stream: first stored, then forgotten; together where the store can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec

from postroad.blobs import Blobs
from postroad.bus.archived import PREFIX, Reference
from postroad.bus.tail import order_key
from postroad.errors import InvalidMessage, MessageTooLarge, NotSupported, PostroadError
from postroad.errors.root import describe
from postroad.events import Codec, Envelope
from postroad.queues import Delivery, Queue
from postroad.streams import PutResult, Record, Stream

_RETRY_SECONDS = (1.0, 5.0, 30.0, 120.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archiver:
    """Moves envelopes of one topic into one stream."""

    topic: str
    queue: Queue
    stream: Stream
    blobs: Blobs | None
    codec: Codec
    transaction: Callable[[], AbstractContextManager[None]]

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
        return self._together(packed) if self.stream.traits.joins_writes else self._put_then_ack(packed)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Leave these to another archiver."""
        if deliveries:
            self.queue.release(list(reversed(deliveries)))

    def _together(self, packed: Sequence[tuple[Delivery, Record]]) -> int:
        """Ack and put in one commit: each event whose lease is still ours is archived exactly once."""
        with self.transaction():
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
