"""Agents on emulated AWS, and the functions fed as AWS feeds them."""

from __future__ import annotations

import base64
import json
from typing import Any

from postroad.agents import AgentEvent, Agents
from postroad.agents.aws.store import AwsAgentStore
from postroad.agents.tables import SUBSCRIBER_EVENTS
from postroad.connections.aws import AwsConnection
from postroad.lambdas import aggregator, publisher
from postroad.queues import Delivery
from postroad.wiring import Backend


class Cloud:
    """Agents whose ids have an ending of their own, and the functions that AWS would call for them."""

    def __init__(self, backend: Backend, aws: AwsConnection, stream: str, ending: str) -> None:
        self.backend = backend
        self.aws = aws
        self.stream = stream
        self.agents: Agents = backend.agents()
        self.ending = ending
        store = self.agents.store
        assert isinstance(store, AwsAgentStore)
        self.store = store
        self._read: set[str] = set()

    def id(self, name: str) -> str:
        return f"{name}-{self.ending}"

    def register(self, *names: str, **options: Any) -> None:
        for name in names:
            self.agents.register(self.id(name), **options)

    def subscribe(self, listener: str, producer: str) -> None:
        self.agents.subscribe(self.id(listener), self.id(producer))

    def publish(self, name: str, *numbers: int, **options: Any) -> None:
        results = self.agents.publish([AgentEvent(self.id(name), "counted", {"n": n}, **options) for n in numbers])
        assert all(result.ok for result in results), results

    def kinesis_event(self) -> dict[str, Any]:
        """All records of the stream that were not read yet, as Lambda gets them."""
        records = []
        for shard in self.aws.kinesis.list_shards(StreamName=self.stream)["Shards"]:
            iterator: str | None = self.aws.kinesis.get_shard_iterator(
                StreamName=self.stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            answer: Any = self.aws.kinesis.get_records(ShardIterator=iterator or "", Limit=1_000)
            records += [_kinesis_record(shard["ShardId"], raw) for raw in answer["Records"]]
        own = [record for record in records if record["kinesis"]["partitionKey"].endswith(self.ending)]
        new = [record for record in own if record["eventID"] not in self._read]
        self._read |= {record["eventID"] for record in new}
        return {"Records": new}

    def rows(self) -> list[dict[str, Any]]:
        table = self.store._tables.name(SUBSCRIBER_EVENTS)
        pages = self.aws.dynamodb.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        items: list[dict[str, Any]] = [item for page in pages for item in page["Items"]]
        return [item for item in items if item["subscriberId"]["S"].endswith(self.ending)]

    def markers(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["timestamp"]["S"].startswith("~")]

    def aggregate(self) -> dict[str, Any]:
        return aggregator.handler(self.kinesis_event(), None)

    def release(self, event: dict[str, Any] | None = None) -> dict[str, Any]:
        return publisher.handler(event or dynamodb_event(self.rows()), None)

    def take(self, name: str) -> list[Delivery]:
        return self.agents.queue(self.id(name)).receive()

    def drain(self, name: str) -> list[int]:
        numbers: list[int] = []
        while taken := self.take(name):
            numbers += [json.loads(delivery.body)["data"]["n"] for delivery in taken]
            self.agents.queue(self.id(name)).ack(taken)
        return numbers

    def by_producer(self, name: str) -> dict[str, list[int]]:
        """The same as `drain`, told apart by group."""
        found: dict[str, list[int]] = {}
        while taken := self.take(name):
            for delivery in taken:
                found.setdefault(str(delivery.group), []).append(json.loads(delivery.body)["data"]["n"])
            self.agents.queue(self.id(name)).ack(taken)
        return found

    def rejected(self, name: str) -> list[dict[str, Any]]:
        """What was put aside of one agent; what there is of others goes."""
        queue = self.backend.queue("agents-rejected")
        found: list[dict[str, Any]] = []
        while taken := queue.receive():
            found += [json.loads(delivery.body) for delivery in taken]
            queue.ack(taken)
        return [body for body in found if body["partitionKey"] == self.id(name)]

    def everyone(self) -> list[str]:
        """The ids of all agents, read in small pages."""
        page = self.agents.list(limit=2)
        found = [agent.agent_id for agent in page.items]
        while page.next_cursor is not None:
            page = self.agents.list(limit=2, cursor=page.next_cursor)
            found += [agent.agent_id for agent in page.items]
        return found

    def state(self, listener: str, producer: str) -> str:
        [found] = [
            each for each in self.agents.subscriptions(self.id(listener)).items if each.producer_id == self.id(producer)
        ]
        return found.state


def _kinesis_record(shard: str, raw: Any) -> dict[str, Any]:
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": raw["PartitionKey"],
            "sequenceNumber": raw["SequenceNumber"],
            "data": base64.b64encode(raw["Data"]).decode(),
            "approximateArrivalTimestamp": raw["ApproximateArrivalTimestamp"].timestamp(),
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"{shard}:{raw['SequenceNumber']}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
        "awsRegion": "us-east-1",
        "eventSourceARN": "arn:aws:kinesis:us-east-1:123456789012:stream/agent-events",
    }


def dynamodb_event(items: list[dict[str, Any]], *, images: bool = True, kind: str = "INSERT") -> dict[str, Any]:
    """Rows as the stream of the table brings them."""
    records = []
    for number, item in enumerate(items, 1):
        change = {
            "ApproximateCreationDateTime": 1479499740.0,
            "Keys": {name: item[name] for name in ("subscriberId", "timestamp")},
            **({"NewImage": item} if images else {}),
            "SequenceNumber": f"{13021600000000001596893679 + number}",
            "SizeBytes": 112,
            "StreamViewType": "NEW_IMAGE",
        }
        records.append(
            {
                "eventID": f"c4ca4238a0b923820dcc509a6f75849{number}",
                "eventName": kind,
                "eventVersion": "1.1",
                "eventSource": "aws:dynamodb",
                "awsRegion": "us-east-1",
                "dynamodb": change,
                "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/SubscriberEvents/stream/2024-06-10",
            }
        )
    return {"Records": records}
