"""The function behind the table SubscriberEvents: its new rows go to the queues of their subscribers."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from postroad.agents import UNREADABLE, AwsAgentStore, Marker, Rejected, Row, row_of
from postroad.lambdas import lowest_failure, opened_agents


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Release a batch of rows and return the lowest one that must come again, if any."""
    store = opened_agents()
    changes = [record["dynamodb"] for record in event["Records"] if record.get("eventName") == "INSERT"]
    rows, sequences, failed = _rows(store, changes)
    failed += [sequences[key] for key in store.release(rows).failed]
    return lowest_failure(failed)


def _rows(
    store: AwsAgentStore, changes: Sequence[Mapping[str, Any]]
) -> tuple[list[Row | Marker], dict[tuple[str, str], str], list[str]]:
    """Return the rows in the order of the stream, their sequences, and the sequences that could not be rejected."""
    images = {_key(change["Keys"]): change["NewImage"] for change in changes if "NewImage" in change}
    missing = [change["Keys"] for change in changes if "NewImage" not in change]
    images |= {_key(item): item for item in (store.pairs.read(missing) if missing else ())}
    rows: list[Row | Marker] = []
    sequences: dict[tuple[str, str], str] = {}
    failed: list[str] = []
    for change in changes:
        sequence = str(change["SequenceNumber"])
        item = images.get(_key(change["Keys"]))
        if item is None:
            # It has expired or was removed in the meantime.
            continue
        try:
            row = row_of(item)
        except UNREADABLE as error:
            reason = f"the row cannot be read: {type(error).__name__}: {error}"
            data = base64.b64encode(msgspec.json.encode(item)).decode()
            if store.reject([Rejected(reason, "", sequence, _key(change["Keys"])[0], data)]):
                failed.append(sequence)
            continue
        rows.append(row)
        sequences[(row.subscriber_id, row.key)] = sequence
    return rows, sequences, failed


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["subscriberId"]["S"], item["timestamp"]["S"]
