"""Agents on the embedded engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import apsw

from postroad.agents.port import Bell, FanOut, Rejected, StreamEvent
from postroad.agents.settings import AgentSettings
from postroad.agents.sqlite import schema
from postroad.agents.sqlite.fanout import Fan
from postroad.agents.sqlite.lanes import SQLiteLanes
from postroad.agents.sqlite.moves import sweep
from postroad.agents.sqlite.registry import SQLiteRegistry
from postroad.agents.sqlite.subscriptions import SQLiteSubscriptions
from postroad.engine import Engine, Transaction, every
from postroad.queues import OutgoingMessage, Queue
from postroad.streams import Shard, Stream, shard_of

SWEEP_EVERY: Final = 60.0
_SHARDS: Final = """
SELECT shard.id FROM stream_shards AS shard JOIN streams ON streams.id = shard.stream WHERE streams.name = ?
"""


class SQLiteAgentStore:
    """Everything about agents in one file."""

    runs_here = True

    def __init__(
        self,
        engine: Engine,
        stream: Stream,
        rejected: Callable[[], Queue],
        settings: AgentSettings,
        *,
        durable: bool = True,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._rejected = rejected
        self._fan = Fan(engine, dispatch_delay=settings.dispatch_delay, retention=settings.retention)
        self._swept_at = float("-inf")
        engine.prepare(schema.SCHEMA, after_reboot=self._after_reboot)
        self.registry = SQLiteRegistry(engine)
        self.subscriptions = SQLiteSubscriptions(engine, self._newest)
        self.lanes = SQLiteLanes(
            engine, visibility=settings.visibility, max_receives=settings.max_receives, durable=durable
        )

    def provision(self) -> None:
        """There is nothing to make: the file has its tables."""

    def transaction(self) -> AbstractContextManager[None]:
        """Let rows and positions commit together; a power cut takes both back, and the stream has the events."""
        return self._engine.transaction(durable=False) if self._stream.traits.joins_writes else nullcontext()

    def fan_out(self, events: Sequence[StreamEvent]) -> FanOut:
        """Write one row for each event and subscriber; the same events again change nothing."""
        written = self._engine.write(lambda tx: self._fan.write(tx, events))
        return FanOut(written, released=0 if self._fan.holds_back else written)

    def reject(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        """Put records that can never be handled where they are seen."""
        self._rejected().send([OutgoingMessage(body=entry.to_json()) for entry in rejected])
        return ()

    def release_due(self) -> int:
        """Let what waited for the whole hold-back window into the lanes; how many rows."""
        due = self._fan.next_due_seconds()
        if due is None or due > 0:
            return 0
        return self._engine.write(self._fan.release_due, durable=False, relieves=False)

    def next_due_seconds(self) -> float | None:
        """How long until something held is due; None when nothing is held."""
        return self._fan.next_due_seconds()

    def sweep(self) -> None:
        """Remove what outlived its retention, a step at a time, once a minute."""
        now = self._engine.clock.monotonic()
        if now - self._swept_at < SWEEP_EVERY:
            return
        if not self._engine.write(self._sweep, durable=False, removes=True):
            self._swept_at = now

    def listen(self) -> AbstractContextManager[Bell] | None:
        """A bell that rings when something is put on the stream; None when the stream is not in this file."""
        channels = [Shard(id=num, place=0).channel for (num,) in self._engine.read(self._shards)]
        return self._engine.listen(*channels) if channels else None

    def _sweep(self, tx: Transaction) -> bool:
        return sweep(tx, now_us=self._engine.now_us(), monotonic_us=self._engine.monotonic_us())

    def _shards(self, connection: apsw.Connection) -> list[tuple[int]]:
        return every(connection, _SHARDS, (self._stream.name,)) if self._stream.traits.joins_writes else []

    def _newest(self, producer_id: str) -> int:
        shards = self._stream.shards()
        return int(self._stream.latest(shards[shard_of(producer_id, len(shards))]))

    def _after_reboot(self, tx: Transaction) -> None:
        schema.after_reboot(tx, monotonic_us=self._engine.monotonic_us(), now_us=self._engine.now_us())
