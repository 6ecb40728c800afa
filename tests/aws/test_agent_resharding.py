"""Agents whose stream is split: what the closed shard still holds comes before what its children hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.aws.cloud import Cloud

from postroad.agents import AgentEvent

pytestmark = pytest.mark.aws


@pytest.fixture
def cloud(village: Cloud) -> Cloud:
    return village


class _KeptParent:
    """Kinesis as AWS has it: a shard that was split stays, closed, with what it holds; in the emulator it vanishes."""

    def __init__(self, client: Any, stream: str, shard: str) -> None:
        self._client = client
        self._stream = stream
        [self._parent] = [each for each in self._shards() if each["ShardId"] == shard]
        place = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        self._records = client.get_records(ShardIterator=place["ShardIterator"], Limit=10_000)["Records"]
        low, high = (int(self._parent["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey"))
        client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str((low + high) // 2))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_paginator(self, name: str) -> Any:
        return self

    def paginate(self, **_: Any) -> Any:
        return [{"Shards": [self._parent, *self._shards()]}]

    def get_shard_iterator(self, *, ShardId: str, **told: Any) -> Any:
        if ShardId != self._parent["ShardId"]:
            return self._client.get_shard_iterator(ShardId=ShardId, **told)
        done = int(told.get("StartingSequenceNumber", -1))
        return {"ShardIterator": f"kept-{sum(int(each['SequenceNumber']) <= done for each in self._records)}"}

    def get_records(self, *, ShardIterator: str, Limit: int) -> Any:
        if not ShardIterator.startswith("kept-"):
            return self._client.get_records(ShardIterator=ShardIterator, Limit=Limit)
        start = int(ShardIterator.removeprefix("kept-"))
        end = min(start + Limit, len(self._records))
        following = {} if end == len(self._records) else {"NextShardIterator": f"kept-{end}"}
        return {"Records": self._records[start:end], "MillisBehindLatest": 0, **following}

    def _shards(self) -> Any:
        return self._client.list_shards(StreamName=self._stream)["Shards"]


def test_what_a_split_shard_still_holds_is_delivered_before_what_its_children_hold(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.register("ann", "bob")
    cloud.subscribe("bob", "ann")
    [first, *_] = cloud.agents.publish([AgentEvent(cloud.id("ann"), "counted", {"n": n}) for n in (1, 2)])
    kept = _KeptParent(cloud.aws.kinesis, cloud.stream, str(first.shard))
    [behind, *_] = cloud.agents.publish([AgentEvent(cloud.id("ann"), "counted", {"n": n}) for n in (3, 4)])
    monkeypatch.setattr(cloud.agents._stream, "_connection", SimpleNamespace(kinesis=kept))
    # One record of each shard at a time: a child that were read beside its parent would be ahead of it.
    runner = cloud.agents.runner(worker="w", batch=1)

    found: list[int] = []
    while len(found) < 4:
        runner.run_once()
        found += cloud.drain("bob")

    assert behind.shard != first.shard
    assert found == [1, 2, 3, 4]
