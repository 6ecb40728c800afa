"""The function behind the stream of agents: its records become one row for each subscriber."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from postroad.agents import EVENTS_STREAM, Rejected, aggregate
from postroad.clock import SYSTEM_CLOCK
from postroad.lambdas import lowest_failure, opened_agents
from postroad.settings import events_stream
from postroad.streams import StreamRecord


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Aggregate a batch of records and return the lowest one that must come again, if any."""
    records = [_record(record) for record in event["Records"]]
    result = aggregate(records, opened_agents(), SYSTEM_CLOCK, stream=events_stream() or EVENTS_STREAM)
    return lowest_failure(list(result.failed))


def _record(record: Mapping[str, Any]) -> StreamRecord | Rejected:
    kinesis = record["kinesis"]
    shard = str(record.get("eventID", "")).partition(":")[0]
    sequence, key, data = str(kinesis["sequenceNumber"]), str(kinesis["partitionKey"]), kinesis["data"]
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError, TypeError):
        return Rejected("data: is not base64", shard, sequence, key, str(data))
    arrived_at = datetime.fromtimestamp(float(kinesis.get("approximateArrivalTimestamp", 0)), UTC)
    return StreamRecord(shard=shard, sequence=sequence, key=key, data=decoded, arrived_at=arrived_at)
