"""Agents on AWS: Kinesis takes their events, DynamoDB keeps them, SQS delivers them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from postroad.agents.aws.fanout import DynamoFan
from postroad.agents.aws.lanes import SQSLanes
from postroad.agents.aws.redrive import Rejects
from postroad.agents.aws.registry import DynamoRegistry
from postroad.agents.aws.release import DynamoRelease
from postroad.agents.aws.subscriptions import DynamoSubscriptions
from postroad.agents.aws.tables import Tables
from postroad.agents.outgoing import Marker, ReleaseResult, Row
from postroad.agents.port import Bell, FanOut, Rejected, StreamEvent
from postroad.agents.releasing import release
from postroad.agents.settings import AgentSettings
from postroad.agents.tables import dead_letters
from postroad.clock import Clock
from postroad.connections import AwsConnection
from postroad.queues import Queue, SQSQueues

SWEEP_EVERY: Final = 60.0


class AwsAgentStore:
    """Everything about agents in one account and region."""

    runs_here = False

    def __init__(
        self,
        connection: AwsConnection,
        queues: SQSQueues,
        rejected: Callable[[], Queue],
        settings: AgentSettings,
        clock: Clock,
        *,
        provision_stream: Callable[[], object],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._queues = queues
        self._rejected = rejected
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._provision_stream = provision_stream
        self._tables = Tables(connection)
        rejects = Rejects(rejected)
        self.release_store = DynamoRelease(self._tables, clock, rejects)
        self._fan = DynamoFan(self._tables, rejects, retention=settings.retention, clock=clock, sleep=sleep)
        self._sends = False
        self._swept_at = float("-inf")
        self.registry = DynamoRegistry(
            self._tables, queues, visibility=settings.visibility, max_receives=settings.max_receives
        )
        self.lanes = SQSLanes(self._tables, queues, self.release_store, clock)
        self.subscriptions = DynamoSubscriptions(self._tables, self.registry, clock, self.lanes.discard)

    def provision(self) -> None:
        """Make tables, stream, dead letters and the queue of rejects when they are missing."""
        self._tables.provision()
        self._provision_stream()
        self._queues.create_queue(dead_letters())
        self._rejected()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Let rows be sent as soon as they are written: the position is noted after both, and both may be repeated."""
        self._sends = True
        try:
            yield
        finally:
            self._sends = False

    def fan_out(self, events: Sequence[StreamEvent]) -> FanOut:
        """Write one row for each event and subscriber; the same events again write equal rows."""
        if not self._sends:
            return self._fan.write(events)
        written: list[Row] = []
        outcome = self._fan.write(events, written)
        result = self.release(written)
        unsent = {key for _, key in result.failed}
        stuck = {row.producer_id for row in written if row.key in unsent}
        return FanOut(
            outcome.written,
            released=result.sent,
            rejected=outcome.rejected + result.rejected,
            failed=(*outcome.failed, *(event for event in events if event.producer_id in stuck)),
        )

    def reject(self, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        """Put records that can never be handled where they are seen; those that could not be put are returned."""
        return self.release_store.reject(rejected)

    def release_due(self) -> int:
        """Nothing waits for its time here: the hold-back window is over when rows are sent."""
        return 0

    def release(self, rows: Sequence[Row | Marker]) -> ReleaseResult:
        """Send rows to their lanes, and what is held for their agents."""
        return release(
            rows,
            self.release_store,
            self.lanes,
            self._clock,
            dispatch_delay=self._settings.dispatch_delay,
            sleep=self._sleep,
        )

    def drain(self) -> ReleaseResult:
        """Empty the pairs that were held back or wait to be replayed, as far as their queues allow."""
        return self.release(self.release_store.waiting())

    def next_due_seconds(self) -> float | None:
        """Nothing is held here: rows wait in the publisher."""
        return None

    def sweep(self) -> None:
        """Do what publisher and sweeper do elsewhere; DynamoDB removes what has expired by itself."""
        now = self._clock.monotonic()
        if now - self._swept_at >= SWEEP_EVERY:
            self._swept_at = now
            self.drain()

    def listen(self) -> AbstractContextManager[Bell] | None:
        """Kinesis rings no bell."""
        return None
