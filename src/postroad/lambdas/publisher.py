"""The function behind the table SubscriberEvents: its new rows go to the lanes of their subscribers."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from postroad.agents import UNREADABLE, AwsAgentStore, Marker, Rejected, Row, row_of
from postroad.lambdas.environment import opened_agents

_NOTHING: dict[str, Any] = {"batchItemFailures": []}
Sequences = dict[tuple[str, str], str]


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Release the rows of a batch; answers the lowest one that must come again, if any."""
    store = opened_agents()
    changes = [record["dynamodb"] for record in event["Records"] if record.get("eventName") == "INSERT"]
    rows, sequences, failed = _rows(store, changes)
    failed += [sequences[key] for key in store.release(rows).failed]
    return _NOTHING if not failed else {"batchItemFailures": [{"itemIdentifier": min(failed, key=int)}]}


def _rows(
    store: AwsAgentStore, changes: Sequence[Mapping[str, Any]]
) -> tuple[list[Row | Marker], Sequences, list[str]]:
    """The rows in the order of the stream, the sequence of each, and the sequences of what could not be put aside."""
    images = _images(store, changes)
    rows: list[Row | Marker] = []
    sequences: Sequences = {}
    failed: list[str] = []
    for change in changes:
        sequence = str(change["SequenceNumber"])
        item = images.get(_key(change["Keys"]))
        if item is None:
            # It expired or was removed meanwhile.
            continue
        try:
            row = row_of(item)
        except UNREADABLE as error:
            if store.reject([_rejected(change, item, error)]):
                failed.append(sequence)
            continue
        rows.append(row)
        sequences[(row.subscriber_id, row.key)] = sequence
    return rows, sequences, failed


def _images(store: AwsAgentStore, changes: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """What each changed row says; rows that came without it are read."""
    told = {_key(change["Keys"]): change["NewImage"] for change in changes if "NewImage" in change}
    missing = [change["Keys"] for change in changes if "NewImage" not in change]
    return told | {_key(item): item for item in (store.release_store.read(missing) if missing else ())}


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["subscriberId"]["S"], item["timestamp"]["S"]


def _rejected(change: Mapping[str, Any], item: Mapping[str, Any], error: Exception) -> Rejected:
    return Rejected(
        reason=f"the row cannot be read: {type(error).__name__}: {error}",
        shardId="",
        sequenceNumber=str(change["SequenceNumber"]),
        partitionKey=_key(change["Keys"])[0],
        data=base64.b64encode(msgspec.json.encode(item)).decode(),
    )
