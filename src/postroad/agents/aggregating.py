"""The aggregator: records of the stream become one row for each subscriber."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from postroad.agents.delivery import merged
from postroad.agents.port import EventStore, Rejected, StreamEvent
from postroad.agents.records import Unreadable, read
from postroad.agents.tables import EVENTS_STREAM
from postroad.clock import Clock
from postroad.streams import StreamRecord
from postroad.telemetry import get_logger


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateResult:
    """What became of a batch. `failed` are the sequences that must come again, in the order of the batch."""

    read: int
    written: int
    rejected: int
    released: int = 0
    failed: tuple[str, ...] = ()


def aggregate(
    records: Sequence[StreamRecord | Unreadable], store: EventStore, clock: Clock, *, stream: str = EVENTS_STREAM
) -> AggregateResult:
    """Write one row for each record and subscriber, and put aside what can never be handled."""
    started = clock.monotonic()
    seen = [read(record, stream) for record in records]
    fan_out = store.fan_out(merged(event for event in seen if isinstance(event, StreamEvent)))
    rejected = [entry for entry in seen if isinstance(entry, Rejected)]
    unput = store.reject(rejected) if rejected else ()
    missing = {(event.shard, event.sequence) for event in fan_out.failed}
    missing |= {(entry.shardId, entry.sequenceNumber) for entry in unput}
    if rejected:
        get_logger("agents").warning(
            "agents_rejected",
            count=len(rejected),
            reason=rejected[0].reason,
            seconds=round(clock.monotonic() - started, 3),
        )
    return AggregateResult(
        read=len(records),
        written=fan_out.written,
        released=fan_out.released,
        rejected=len(rejected) - len(unput) + fan_out.rejected,
        failed=tuple(record.sequence for record in records if (record.shard, record.sequence) in missing),
    )
