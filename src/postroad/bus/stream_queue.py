"""A stream as the queue of one consumer, so that one receiver serves both: each shard is a group in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from postroad import queues
from postroad.arguments import check, seconds_between
from postroad.clock import Clock
from postroad.errors import NotSupported, StaleReceipt, TransportError
from postroad.queues import AckResult, Delivery, QueueStats, QueueTraits, SendResult
from postroad.streams import TRIM_HORIZON, Record, ShardLease, Stream, StreamRecord


@dataclass(slots=True, eq=False)
class Entry:
    """A record that was read and is not settled."""

    record: StreamRecord
    receives: int = 0
    ready_at: float = 0.0
    given: bool = False
    done: bool = False
    error: str | None = None


@dataclass(slots=True, eq=False)
class Window:
    """What was read of one shard and is not settled yet. `after` is where to read on."""

    shard: str
    after: str
    lease: ShardLease | None = None
    entries: deque[Entry] = field(default_factory=deque)

    def wants(self, limit: int, now: float) -> int:
        """Return how many records to read to give out `limit`; none while the shard has to wait."""
        return 0 if self._waits(now) else max(0, limit - len(self.entries))

    def add(self, records: Sequence[StreamRecord]) -> None:
        self.entries.extend(map(Entry, records))
        if records:
            self.after = records[-1].sequence

    def give(self, limit: int, now: float) -> list[Entry]:
        """Return the next entries in order; none while earlier ones are given out or have to wait."""
        given: list[Entry] = []
        if self._waits(now):
            return given
        for entry in self.entries:
            if len(given) == limit or entry.ready_at > now:
                break
            entry.given = True
            entry.receives += 1
            given.append(entry)
        return given

    def give_back(self, entries: Collection[Entry], ready_at: float, error: str | None) -> None:
        """Give these entries out again later, before those behind them; the error is that of the first of them."""
        for entry in entries:
            entry.given, entry.ready_at = False, ready_at
        for entry in self.entries:
            if entry in entries:
                entry.error = error or entry.error
                return

    def advance(self) -> str | None:
        """Drop handled records at the front; return the sequence of the last one, or None if there was none."""
        position = None
        while self.entries and self.entries[0].done:
            position = self.entries.popleft().record.sequence
        return position

    def _waits(self, now: float) -> bool:
        if any(entry.given for entry in self.entries):
            return True
        return bool(self.entries) and self.entries[0].ready_at > now


Unpack = Callable[[bytes], bytes]
_LOOK_FOR_SHARDS_SECONDS = 30.0
_RETRY_SECONDS = 5.0
_OK = AckResult(ok=True)


class StreamQueue:
    """Without a consumer: all shards, from the moment of `open`. With one: this worker's share, from its position."""

    def __init__(
        self, stream: Stream, *, consumer: str | None, worker: str, lease_seconds: float, unpack: Unpack, clock: Clock
    ) -> None:
        self.name = stream.name
        self._stream = stream
        self._consumer = consumer
        self._worker = worker
        self._lease_seconds = max(0.001, lease_seconds)
        self._unpack = unpack
        self._clock = clock
        self._lock = threading.RLock()
        # Held while a thread reads, so that no record is read twice; others can settle meanwhile.
        self._reading = threading.Lock()
        self._windows: dict[str, Window] = {}
        self._given: dict[str, tuple[Window, Entry]] = {}
        self._look_at = 0.0
        self._turn = 0
        self._opened = False

    @property
    def traits(self) -> QueueTraits:
        return QueueTraits(
            fifo=True,
            durable=self._stream.traits.durable,
            exclusive=False,
            peeks_clean=False,
            tells_stale_acks=True,
            atomic_reject=False,
            keeps_release_error=False,
            counts_expired=False,
            auto_deletes=False,
            short_waits=True,
            max_message_bytes=self._stream.traits.max_record_bytes,
        )

    def open(self) -> None:
        """Follow the stream from now on: without a consumer, records that are put after this returns are received.

        With a consumer this takes the first leases, so that a store that cannot keep them fails here.
        """
        with self._lock:
            if not self._opened and self._consumer is None:
                self._windows = {shard: Window(shard, self._stream.latest(shard)) for shard in self._stream.shards()}
                self._look_at = self._clock.monotonic() + _LOOK_FOR_SHARDS_SECONDS
            elif not self._opened:
                self._follow()
            self._opened = True

    def close(self) -> None:
        """Leave the shards to other workers now."""
        with self._lock:
            held, self._windows, self._given = bool(self._windows), {}, {}
            self._opened, self._look_at = False, 0.0
        if held and self._consumer is not None:
            self._stream.lease(self._consumer, self._worker, seconds=0.001)

    def blocked(self) -> str | None:
        """Return why a shard is blocked, if one is: by a record that failed and is retried."""
        with self._lock:
            for window in self._windows.values():
                entry = window.entries[0] if window.entries else None
                if entry is not None and entry.error is not None:
                    sequence = entry.record.sequence
                    return f"{window.shard} waits for record {sequence}, received {entry.receives} times: {entry.error}"
        return None

    def send(self, messages: Sequence[queues.OutgoingMessage]) -> list[SendResult]:
        """Put the messages into the stream, with their group as the key."""
        bodies = [each.body.encode() if isinstance(each.body, str) else bytes(each.body) for each in messages]
        keys = [message.group or message.dedup_id or "-" for message in messages]
        records = [Record(key=key, data=body) for key, body in zip(keys, bodies, strict=True)]
        return [
            SendResult(ok=result.ok, message_id=result.sequence, error=result.error)
            for result in self._stream.put(records)
        ]

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Return up to `max_messages` records, those of a shard in order; they stay leased until settled."""
        self.open()
        deadline = time.monotonic() + wait
        while True:
            self._follow()
            found = self._gather(max_messages)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            time.sleep(min(left, self._stream.traits.poll_seconds))

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        """Mark the records as handled. The position moves to the last one before the first that is not."""
        queues.check_deliveries(deliveries)
        with self._lock:
            taken = [self._given.pop(delivery.receipt, None) for delivery in deliveries]
            for each in taken:
                if each is not None:
                    each[1].done, each[1].given = True, False
            windows = {id(each[0]): each[0] for each in taken if each is not None}
            lost = {key for key, window in windows.items() if not self._moved(window)}
        return [_stale() if each is None or id(each[0]) in lost else _OK for each in taken]

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        """Renew the leases of this worker's shards."""
        check(seconds, seconds_between(0, queues.MAX_VISIBILITY), "seconds")
        queues.check_deliveries(deliveries)
        if self._consumer is not None:
            self._look_at = 0.0
            self._follow()
        with self._lock:
            return [_OK if delivery.receipt in self._given else _stale() for delivery in deliveries]

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        """Give the records out again after so many seconds; their shards wait for them."""
        check(after, seconds_between(0, queues.MAX_VISIBILITY), "after")
        queues.check_deliveries(deliveries)
        check(error, queues.Note | None, "error")
        ready_at = self._clock.monotonic() + after
        with self._lock:
            taken = [self._given.pop(delivery.receipt, None) for delivery in deliveries]
            for window in {id(each[0]): each[0] for each in taken if each is not None}.values():
                mine = [each[1] for each in taken if each is not None and each[0] is window]
                window.give_back(mine, ready_at, error)
        return [_stale() if each is None else _OK for each in taken]

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        raise NotSupported("a stream has no dead letters of its own; give the bus a queue for them")

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[queues.PeekedMessage]:
        raise NotSupported("a stream can be read, but not peeked into")

    def stats(self) -> QueueStats:
        """Return how many records this worker has read; how many the stream holds is unknown."""
        with self._lock:
            entries = [entry for window in self._windows.values() for entry in window.entries]
            given = sum(entry.given for entry in entries)
        return QueueStats(visible=len(entries) - given, in_flight=given, delayed=0, oldest_age_seconds=None)

    def _follow(self) -> None:
        """Renew this worker's leases and notice new and closed shards. After a failure the next call tries again."""
        now = self._clock.monotonic()
        with self._lock:
            if now < self._look_at:
                return
            if self._consumer is None:
                for shard in self._stream.shards():
                    # A shard that is new holds only records that were put since.
                    self._windows.setdefault(shard, Window(shard, TRIM_HORIZON))
                self._look_at = now + _LOOK_FOR_SHARDS_SECONDS
                return
            self._hold(self._consumer, self._stream.lease(self._consumer, self._worker, seconds=self._lease_seconds))
            self._look_at = now + self._lease_seconds / 3

    def _hold(self, consumer: str, leases: Sequence[ShardLease]) -> None:
        tokens = {lease.shard: lease for lease in leases}
        for shard, window in list(self._windows.items()):
            if tokens.get(shard) != window.lease:
                self._drop(window)
        for shard, lease in tokens.items():
            if shard not in self._windows:
                after = self._stream.position(consumer, shard) or TRIM_HORIZON
                self._windows[shard] = Window(shard, after, lease)

    def _drop(self, window: Window) -> None:
        """Forget a shard that another worker reads now; its records can no longer be settled here."""
        self._windows.pop(window.shard, None)
        self._given = {receipt: each for receipt, each in self._given.items() if each[0] is not window}

    def _moved(self, window: Window) -> bool:
        """Store the position after the handled records; return False if another worker has the shard."""
        position = window.advance()
        if position is None or self._consumer is None:
            return True
        kept = self._stream.checkpoint(self._consumer, window.shard, position, lease=window.lease)
        if not kept:
            self._drop(window)
        return kept

    def _gather(self, limit: int) -> list[Delivery]:
        with self._lock:
            windows = list(self._windows.values())
        self._turn += 1
        found: list[Delivery] = []
        for place in range(len(windows)):
            # A different shard is first each time, so that a busy one does not starve the others.
            window = windows[(place + self._turn) % len(windows)]
            if len(found) < limit:
                found += self._next(window, limit - len(found))
        return found

    def _next(self, window: Window, limit: int) -> list[Delivery]:
        now = self._clock.monotonic()
        with self._reading:
            with self._lock:
                wanted = window.wants(limit, now)
            records = self._stream.read(window.shard, after=window.after, limit=wanted) if wanted else []
            with self._lock:
                window.add(records)
        with self._lock:
            if self._windows.get(window.shard) is not window:
                return []
            return self._deliveries(window, window.give(limit, now), now)

    def _deliveries(self, window: Window, given: Sequence[Entry], now: float) -> list[Delivery]:
        found = []
        for index, entry in enumerate(given):
            try:
                body = self._unpack(entry.record.data)
            except TransportError as error:
                # The store of large bodies does not answer: the shard waits for it.
                window.give_back(given[index:], now + _RETRY_SECONDS, str(error))
                break
            record = entry.record
            message_id = f"{record.shard}-{record.sequence}"
            receipt = f"{message_id}-{entry.receives}-{0 if window.lease is None else window.lease.token}"
            self._given[receipt] = (window, entry)
            delivery = Delivery(
                message_id=message_id,
                body=body,
                attributes={},
                group=record.shard,
                receipt=receipt,
                receive_count=entry.receives,
                sent_at=record.arrived_at,
                first_received_at=self._clock.now(),
                sequence=int(record.sequence),
            )
            found.append(delivery)
        return found


def _stale() -> AckResult:
    return AckResult(ok=False, error=StaleReceipt("the record is no longer this worker's"))
