"""What is published of the event system, word for word: item, properties, table, entry and states."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from postroad.journal import EVENT_TO_STATE, EventBridgeSender, JournalEvent
from postroad.journal.keys import EVENTS
from postroad.topology import render_cloudformation, task_topology

ITEM: dict[str, Any] = {
    "PK": "TENANT#gbinnovations",
    "SK": "TIMESTAMP#1767453739640#EVENT#ddf71f63-b036-4ac7-ad0f-77a7fdfca352",
    "GSI1PK": "TASK#req-123",
    "GSI1SK": "TASK#TIMESTAMP#1767453739640",
    "GSI2PK": "APP#task-workflow",
    "GSI2SK": "TIMESTAMP#1767453739640",
    "GSI3PK": "APP#task-workflow",
    "GSI3SK": "TASK#req-123#TIMESTAMP#1767453739640",
    "GSI4PK": "EVENT#Task Processing Started",
    "GSI4SK": "TENANT#gbinnovations#TIMESTAMP#1767453739640",
    "GSI5PK": "EVENT#Task Processing Started",
    "GSI5SK": "TENANT#gbinnovations#TASK#req-123#TIMESTAMP#1767453739640",
    "GSI6PK": "EVENT#Task Processing Started",
    "GSI6SK": "TENANT#gbinnovations#APP#task-workflow#TIMESTAMP#1767453739640",
    "GSI7PK": "EVENT#Task Processing Started",
    "GSI7SK": "TENANT#gbinnovations#APP#task-workflow#TASK#req-123#TIMESTAMP#1767453739640",
    "entityId": "req-123",
    "entityType": "TASK",
    "tenantId": "gbinnovations",
    "eventType": "Task Processing Started",
    "timestamp": 1767453739640,
    "context": {"source": "system", "environment": "prod", "origin": "sqs-worker", "workerId": "worker-abc123"},
    "properties": {
        "requestId": "req-123",
        "jobId": "job-456",
        "effectiveUntil": 1707300645,
        "workerId": "worker-i-001",
        "processId": 12345,
        "startedAt": 1767453739640,
    },
}
PROPERTIES: dict[str, dict[str, Any]] = {
    "Task Pending": {"requestId": "req-123", "jobId": "job-456", "name": "scrape-store", "dependsOn": []},
    "Task Processing Started": {
        "requestId": "req-123",
        "jobId": "job-456",
        "effectiveUntil": 1707300645,
        "workerId": "worker-i-001",
        "processId": 12345,
    },
    "Task Processing Failed": {
        "requestId": "req-123",
        "jobId": "job-456",
        "attemptNumber": 2,
        "error": "ETIMEDOUT",
        "errorCategory": "network",
    },
    "Task Completed": {
        "requestId": "req-123",
        "jobId": "job-456",
        "output": {},
        "durationMs": 45000,
        "exitCode": 0,
        "usage": {"inputTokens": 12000, "outputTokens": 3500, "cacheReadTokens": 8000},
    },
    "Task Failed": {
        "requestId": "req-123",
        "jobId": "job-456",
        "error": "Invalid API key",
        "errorCategory": "auth",
        "retryCount": 3,
        "source": "worker",
    },
    "Task Timeout": {
        "requestId": "req-123",
        "jobId": "job-456",
        "timeoutMs": 200000,
        "elapsedMs": 200050,
        "signal": "SIGKILL",
    },
    "Task Heartbeat": {
        "requestId": "req-123",
        "effectiveUntil": 1707300645,
        "heartbeatNumber": 3,
        "elapsedMs": 60000,
        "workerId": "worker-i-001",
        "processId": 12345,
        "memoryUsage": {"rss": 256000000},
        "lastActivity": {"type": "step_running", "stepName": "color-tags", "timestamp": 1707300540},
    },
    "Job Created": {
        "jobId": "job-456",
        "requestId": "req-789",
        "tasks": [
            {"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "store-123"}},
            {"taskId": "task-B", "name": "analyze-competitors", "dependsOn": [], "input": {"market": "fashion"}},
            {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
            {"taskId": "task-D", "name": "font-pairing", "dependsOn": ["task-A"], "input": {}},
            {"taskId": "task-E", "name": "compile-result", "dependsOn": ["task-C", "task-D"], "input": {}},
        ],
        "totalTasks": 5,
    },
    "Job Tasks Added": {
        "jobId": "job-456",
        "newTasks": [
            {"taskId": "task-F", "name": "market-analysis", "dependsOn": ["task-A"], "input": {"depth": "detailed"}}
        ],
        "previousTotalTasks": 5,
        "totalTasksNow": 6,
    },
    "Job Completed": {
        "jobId": "job-456",
        "totalTasks": 5,
        "taskStatuses": {
            "task-A": "completed",
            "task-B": "completed",
            "task-C": "completed",
            "task-D": "completed",
            "task-E": "completed",
        },
    },
    "Job Failure Detected": {
        "jobId": "job-456",
        "failedTaskId": "task-C",
        "taskStatuses": {
            "task-A": "completed",
            "task-B": "completed",
            "task-C": "failed",
            "task-D": "processing",
            "task-E": None,
        },
    },
    "Task Health Check": {
        "summary": {"totalProcessing": 4, "healthy": 2, "warning": 1, "critical": 0, "overtime": 1},
        "tasks": [
            {
                "requestId": "req-123",
                "health": "healthy",
                "elapsed": 120000,
                "timeSinceLastEvent": 15000,
                "lastEventType": "Task Heartbeat",
                "workerId": "worker-i-001",
            },
            {
                "requestId": "req-456",
                "health": "overtime",
                "elapsed": 3800000,
                "timeSinceLastEvent": 20000,
                "lastEventType": "Task Heartbeat",
                "workerId": "worker-i-002",
            },
        ],
    },
}
TABLE = """
EventsTable:
  Type: AWS::DynamoDB::Table
  Properties:
    TableName: events-${stage}
    BillingMode: PAY_PER_REQUEST
    AttributeDefinitions:
      - { AttributeName: PK,     AttributeType: S }
      - { AttributeName: SK,     AttributeType: S }
      - { AttributeName: GSI1PK, AttributeType: S }
      - { AttributeName: GSI1SK, AttributeType: S }
      - { AttributeName: GSI2PK, AttributeType: S }
      - { AttributeName: GSI2SK, AttributeType: S }
      - { AttributeName: GSI3PK, AttributeType: S }
      - { AttributeName: GSI3SK, AttributeType: S }
      - { AttributeName: GSI4PK, AttributeType: S }
      - { AttributeName: GSI4SK, AttributeType: S }
      - { AttributeName: GSI5PK, AttributeType: S }
      - { AttributeName: GSI5SK, AttributeType: S }
      - { AttributeName: GSI6PK, AttributeType: S }
      - { AttributeName: GSI6SK, AttributeType: S }
      - { AttributeName: GSI7PK, AttributeType: S }
      - { AttributeName: GSI7SK, AttributeType: S }
    KeySchema:
      - { AttributeName: PK, KeyType: HASH }
      - { AttributeName: SK, KeyType: RANGE }
    GlobalSecondaryIndexes:
      - IndexName: GSI1-index
        KeySchema:
          - { AttributeName: GSI1PK, KeyType: HASH }
          - { AttributeName: GSI1SK, KeyType: RANGE }
        Projection: { ProjectionType: ALL }
      - IndexName: GSI2-index
        KeySchema:
          - { AttributeName: GSI2PK, KeyType: HASH }
          - { AttributeName: GSI2SK, KeyType: RANGE }
        Projection: { ProjectionType: ALL }
      - IndexName: GSI3-index
        KeySchema:
          - { AttributeName: GSI3PK, KeyType: HASH }
          - { AttributeName: GSI3SK, KeyType: RANGE }
        Projection: { ProjectionType: ALL }
      - IndexName: GSI4-index
        KeySchema:
          - { AttributeName: GSI4PK, KeyType: HASH }
          - { AttributeName: GSI4SK, KeyType: RANGE }
        Projection: { ProjectionType: ALL }
      - IndexName: GSI5-index
        KeySchema:
          - { AttributeName: GSI5PK, KeyType: HASH }
          - { AttributeName: GSI5SK, KeyType: RANGE }
        Projection: { ProjectionType: ALL }
      - IndexName: GSI6-index
        KeySchema:
          - { AttributeName: GSI6PK, KeyType: HASH }
          - { AttributeName: GSI6SK, KeyType: RANGE }
        Projection: { ProjectionType: ALL }
      - IndexName: GSI7-index
        KeySchema:
          - { AttributeName: GSI7PK, KeyType: HASH }
          - { AttributeName: GSI7SK, KeyType: RANGE }
        Projection: { ProjectionType: ALL }
    TimeToLiveSpecification:
      AttributeName: ttl
      Enabled: true
"""


def test_the_item_is_made_byte_for_byte() -> None:
    event = JournalEvent.create(
        "Task Processing Started",
        tenant_id="gbinnovations",
        entity_id="req-123",
        app="task-workflow",
        timestamp=1767453739640,
        event_id=UUID("ddf71f63-b036-4ac7-ad0f-77a7fdfca352"),
        context=ITEM["context"],
        properties=ITEM["properties"],
    )

    assert msgspec.json.encode(event.to_item()) == msgspec.json.encode(ITEM)
    assert JournalEvent.from_item(ITEM) == event


@pytest.mark.parametrize("event_type", PROPERTIES)
def test_the_properties_of_each_type_are_taken_as_they_are(event_type: str) -> None:
    given = PROPERTIES[event_type]
    entity = str(given.get("requestId") if event_type.startswith("Task") else given["jobId"])

    event = JournalEvent.create(event_type, tenant_id="t", entity_id=entity.replace("None", "app"), properties=given)

    assert msgspec.json.encode(event.to_item()["properties"]) == msgspec.json.encode(given)


def test_the_table_is_declared_as_it_is_made() -> None:
    published = yaml.safe_load(TABLE)["EventsTable"]["Properties"]
    rendered = render_cloudformation(task_topology("prod"))
    (declared,) = [one for one in rendered["Resources"].values() if one["Type"] == "AWS::DynamoDB::Table"]

    assert EVENTS.definition() == {
        name: value for name, value in published.items() if name not in ("TableName", "TimeToLiveSpecification")
    }
    for name, value in published.items():
        assert declared["Properties"][name] == ("events-prod" if name == "TableName" else value), name


class Bus:
    """A client that keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def put_events(self, **call: Any) -> dict[str, Any]:
        self.calls.append(call)
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}


def test_the_entry_is_put_on_the_bus_as_it_is() -> None:
    bus = Bus()

    EventBridgeSender(bus, event_bus_name="events-prod").append([JournalEvent.from_item(ITEM)])

    (entry,) = bus.calls[0]["Entries"]
    assert msgspec.json.decode(entry.pop("Detail")) == ITEM
    assert entry == {
        "EventBusName": "events-prod",
        "Source": "task-workflow.task-workflow",
        "DetailType": "log-event",
        "Time": datetime(2026, 1, 3, 15, 22, 19, 640_000, tzinfo=UTC),
    }


def test_the_states_are_those_of_the_events() -> None:
    published = {
        "Task Pending": "pending",
        "Task Processing Started": "processing",
        "Task Processing Failed": "processing",
        "Task Completed": "completed",
        "Task Failed": "failed",
        "Task Timeout": "failed",
        "Task Heartbeat": "processing",
    }

    assert published | {"Task Interrupted": "pending", "Task Cancelled": "cancelled"} == EVENT_TO_STATE
