"""The runner: moves events from the stream to the agents' queues. Several runners share the shards of one stream."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from postroad import failpoints
from postroad.agents.model import RunStats
from postroad.agents.port import AgentStore
from postroad.agents.stream import Rejected, StreamEvent, merged, read
from postroad.agents.tables import EVENTS_STREAM
from postroad.arguments import check, whole_number
from postroad.backoff import Backoff
from postroad.clock import Clock
from postroad.engine import Listener
from postroad.errors import PostroadError, describe
from postroad.streams import TRIM_HORIZON, ShardLease, Stream, StreamRecord
from postroad.telemetry import get_logger

AGGREGATOR: Final = "agents-aggregator"
LEASE_SECONDS: Final = 5.0
_RENEW_SECONDS: Final = 1.5
_LONGEST_PAUSE: Final = 0.25
# A lease of this length is over when the next runner asks.
_AT_ONCE: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateResult:
    """The outcome of a batch.

    Attributes:
        read: Events of the batch.
        written: Rows written for subscribers.
        rejected: Events that were refused for good.
        released: Rows given to their queues.
        failed: The sequences that must come again, in the order of the batch.
    """

    read: int
    written: int
    rejected: int
    released: int = 0
    failed: tuple[str, ...] = ()


def aggregate(
    records: Sequence[StreamRecord | Rejected], store: AgentStore, clock: Clock, *, stream: str = EVENTS_STREAM
) -> AggregateResult:
    """Write one row for each record and subscriber, and reject what can never be handled.

    Args:
        records: A batch from the stream, in the order of each shard; what could not be decoded is `Rejected` already.
        store: Where the rows go.
        clock: Times the log line about rejected records.
        stream: The name of the stream; the ids of events that came without one are made of it.
    """
    started = clock.monotonic()
    seen = [record if isinstance(record, Rejected) else read(record, stream) for record in records]
    fan_out = store.fan_out(merged(event for event in seen if isinstance(event, StreamEvent)))
    rejected = [entry for entry in seen if isinstance(entry, Rejected)]
    left = store.reject(rejected) if rejected else ()
    missing = {*map(_place, fan_out.failed), *map(_place, left)}
    if rejected:
        seconds = round(clock.monotonic() - started, 3)
        get_logger("agents").warning("agents_rejected", count=len(rejected), reason=rejected[0].reason, seconds=seconds)
    return AggregateResult(
        read=len(records),
        written=fan_out.written,
        released=fan_out.released,
        rejected=len(rejected) - len(left) + fan_out.rejected,
        failed=tuple(place[1] for place in map(_place, seen) if place in missing),
    )


def _place(entry: StreamEvent | Rejected) -> tuple[str, str]:
    return (entry.shardId, entry.sequenceNumber) if isinstance(entry, Rejected) else (entry.shard, entry.sequence)


class _LostLease(Exception):
    """Another runner has the shard, so nothing of this round may be committed."""


class Runner:
    """One worker. `run_once` does one round; `run` goes on until it is stopped.

    Args:
        store: Where rows are written.
        stream: Where events are read.
        clock: Times the leases of the shards.
        worker: The name under which it leases shards; by default host, process and object. It must be unique.
        batch: Records to read from a shard at once, 1 to 10,000; default 500. Fewer make shorter transactions.

    Raises:
        InvalidInput: `batch` is out of range.

    Example:
        agents.runner().run(threading.Event())
    """

    def __init__(
        self, store: AgentStore, stream: Stream, clock: Clock, *, worker: str | None = None, batch: int = 500
    ) -> None:
        self._clock = clock
        self._store = store
        self._stream = stream
        self.worker = f"{socket.gethostname()[:64]}-{os.getpid()}-{id(self):x}" if worker is None else worker
        check(batch, whole_number(1, 10_000), "batch")
        self._batch = batch
        self._leases: list[ShardLease] = []
        self._leased_at = float("-inf")
        self._positions: dict[ShardLease, str] = {}

    def run_once(self) -> RunStats:
        """Move what is on this worker's shards; a worker without shards moves nothing."""
        self._renew()
        read = [(lease, self._read(lease)) for lease in self._leases]
        batches = [(lease, records) for lease, records in read if records]
        result = AggregateResult(read=0, written=0, rejected=0)
        if batches:
            try:
                result = self._commit(batches)
            except _LostLease:
                self._leased_at = float("-inf")
                self._positions.clear()
        released = self._store.release_due()
        self._store.sweep()
        return RunStats(
            read=result.read, written=result.written, released=released + result.released, rejected=result.rejected
        )

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set, then give the shards back; after any error try again."""
        with ExitStack() as stack:
            listening = self._store.listen()
            listener = None if listening is None else stack.enter_context(listening)
            failure, backoff = None, Backoff()
            stack.callback(self.close)
            while not stop.is_set():
                try:
                    if not self.run_once().read:
                        self._pause(listener, stop)
                except Exception as error:
                    # Any error: the next round may succeed, and nothing else moves the events of these shards.
                    if failure != (failure := describe(error)):
                        get_logger("agents").warning("agents_runner_failed", error=failure)
                    stop.wait(backoff.next())
                else:
                    failure = None
                    backoff.reset()

    def close(self) -> None:
        """Give the shards back, so that the next runner gets them at once. A closed runner may run again."""
        if not self._leases:
            return
        self._leases = []
        self._positions.clear()
        # If that fails, the leases end by themselves.
        with suppress(PostroadError):
            self._stream.lease(AGGREGATOR, self.worker, seconds=_AT_ONCE)

    def _renew(self) -> None:
        if self._clock.monotonic() - self._leased_at < _RENEW_SECONDS and self._leases:
            return
        self._leased_at = self._clock.monotonic()
        self._leases = self._stream.lease(AGGREGATOR, self.worker, seconds=LEASE_SECONDS)
        self._positions = {lease: at for lease, at in self._positions.items() if lease in self._leases}

    def _read(self, lease: ShardLease) -> list[StreamRecord]:
        position = self._positions.get(lease)
        if position is None:
            position = self._stream.position(AGGREGATOR, lease.shard) or TRIM_HORIZON
            self._positions[lease] = position
        return self._stream.read(lease.shard, after=position, limit=self._batch)

    def _commit(self, batches: Sequence[tuple[ShardLease, list[StreamRecord]]]) -> AggregateResult:
        """Write rows and positions in one transaction if the store can; else rows first, which are idempotent."""
        done: dict[ShardLease, str] = {}
        with self._leases_kept(), self._store.transaction():
            result = aggregate(
                [record for _, records in batches for record in records],
                self._store,
                self._clock,
                stream=self._stream.name,
            )
            for lease, records in batches:
                position = _before_failure(records, result.failed)
                if position is None:
                    continue
                if not self._stream.checkpoint(AGGREGATOR, lease.shard, position, lease=lease):
                    raise _LostLease
                done[lease] = position
        self._positions.update(done)
        failpoints.hit("agents.fan_out.after_commit")
        return result

    def _leases_kept(self) -> AbstractContextManager[None]:
        """Renew the leases during a batch that may take longer than they last.

        Where rows and positions commit together a batch is shorter, and renewing would wait for the same lock.
        """

        def renew(done: threading.Event) -> None:
            while not done.wait(_RENEW_SECONDS):
                with suppress(PostroadError):
                    self._stream.lease(AGGREGATOR, self.worker, seconds=LEASE_SECONDS)

        return nullcontext() if self._stream.traits.joins_writes else beside(renew, name="agents-leases")

    def _pause(self, listener: Listener | None, stop: threading.Event) -> None:
        if not self._leases:
            # Others have all shards: this one only waits for theirs to become free.
            stop.wait(_RENEW_SECONDS)
            return
        due = self._store.next_due_seconds()
        longest = _LONGEST_PAUSE if due is None else min(_LONGEST_PAUSE, max(0.001, due))
        if listener is not None:
            listener.wait(longest)
        else:
            stop.wait(min(longest, self._stream.traits.poll_seconds))


@contextmanager
def beside(work: Callable[[threading.Event], None], *, name: str) -> Iterator[None]:
    """Run `work(stop)` on a thread of this name during the block; then set `stop` and wait for it."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _before_failure(records: Sequence[StreamRecord], failed: Sequence[str]) -> str | None:
    """Return the last sequence before the first record that must come again."""
    done = None
    for record in records:
        if record.sequence in failed:
            break
        done = record.sequence
    return done
