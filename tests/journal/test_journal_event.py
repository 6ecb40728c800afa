"""Events of the journal: made whole, or refused with the path of what is at fault."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from postroad.errors import InvalidEvent
from postroad.journal import JournalEvent
from postroad.journal.events import EVENT_CLASSES, TaskPending
from postroad.testing import FakeClock

T0 = 1_767_453_739_640
STARTED = {"requestId": "req-123", "effectiveUntil": 1_707_300_645, "workerId": "worker-i-001", "processId": 12345}
PENDING = {"requestId": "req-1", "name": "scrape-store"}
SAMPLES: dict[str, dict[str, Any]] = {
    "Task Pending": {**PENDING, "jobId": "job-456", "dependsOn": [], "input": {}, "dependencyOutputs": {"a": 1}},
    "Task Processing Started": {**STARTED, "startedAt": T0, "attemptNumber": 1, "run": 1, "token": 3},
    "Task Processing Failed": {"requestId": "r", "attemptNumber": 2, "error": "ETIMEDOUT", "errorCategory": "network"},
    "Task Completed": {
        "requestId": "r",
        "output": {"a": 1},
        "durationMs": 45_000,
        "exitCode": 0,
        "usage": {"inputTokens": 12_000, "outputTokens": 3_500, "cacheReadTokens": 8_000},
    },
    "Task Failed": {
        "requestId": "r",
        "error": "Invalid API key",
        "errorCategory": "auth",
        "retryCount": 3,
        "source": "worker",
    },
    "Task Timeout": {"requestId": "r", "timeoutMs": 200_000, "elapsedMs": 200_050, "signal": "SIGKILL"},
    "Task Heartbeat": {
        "requestId": "r",
        "effectiveUntil": 1_707_300_645,
        "heartbeatNumber": 3,
        "elapsedMs": 60_000,
        "workerId": "worker-i-001",
        "processId": 12345,
        "memoryUsage": {"rss": 256_000_000},
        "lastActivity": {"type": "step_running", "stepName": "tags", "timestamp": 1_707_300_540},
    },
    "Task Interrupted": {"requestId": "r", "reason": "SIGTERM"},
    "Task Cancelled": {"requestId": "r", "reason": "enough"},
    "Job Created": {
        "jobId": "job-456",
        "requestId": "req-789",
        "totalTasks": 1,
        "tasks": [{"taskId": "a", "name": "scrape", "dependsOn": [], "input": {"storeId": "s"}}],
    },
    "Job Tasks Added": {
        "jobId": "j",
        "newTasks": [{"taskId": "f", "name": "m", "dependsOn": ["a"], "input": {}}],
        "previousTotalTasks": 5,
        "totalTasksNow": 6,
    },
    "Job Completed": {"jobId": "j", "totalTasks": 1, "taskStatuses": {"a": "completed"}},
    "Job Cancelled": {"jobId": "j", "totalTasks": 1, "taskStatuses": {"a": None}},
    "Job Failure Detected": {"jobId": "j", "failedTaskId": "c", "taskStatuses": {"c": "failed", "e": None}},
    "Job Resumed": {"jobId": "j", "resumedTasks": ["c"], "resumeNumber": 1},
    "Task Health Check": {
        "summary": {"totalProcessing": 4, "healthy": 2, "warning": 1, "critical": 0, "overtime": 1},
        "tasks": [{"requestId": "req-123", "health": "healthy"}],
    },
}
ENTITIES = {"Task": "TASK", "Job": "JOB"}


def make(event_type: str = "Task Pending", **given: Any) -> JournalEvent:
    """An event like most."""
    return JournalEvent.create(
        event_type,
        **{"tenant_id": "gbinnovations", "entity_id": "req-123", "properties": PENDING, "timestamp": T0, **given},
    )


@pytest.mark.parametrize("event_type", list(SAMPLES))
def test_every_type_takes_its_own_properties(event_type: str) -> None:
    event = make(event_type, properties={**SAMPLES[event_type], "unknown": ["kept"]})

    entity = "HEALTH" if event_type == "Task Health Check" else ENTITIES[event_type.split()[0]]
    assert event.properties == {**SAMPLES[event_type], "unknown": ["kept"]}
    assert event.entity_type == entity


def test_every_type_has_a_sample_here() -> None:
    assert set(SAMPLES) == set(EVENT_CLASSES)


def test_properties_may_be_given_as_their_class() -> None:
    event = make(properties=TaskPending(request_id="req-1", name="scrape", job_id="j", input={"a": 1}))

    assert event.properties == {"requestId": "req-1", "jobId": "j", "name": "scrape", "input": {"a": 1}}


def test_an_event_of_now_has_the_clocks_time() -> None:
    clock = FakeClock(datetime(2030, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC))

    event = make(timestamp=None, clock=clock)

    assert event.timestamp == 1_893_456_000_123
    assert event.received_at is None
    assert event.ttl is None


def test_ids_carry_their_millisecond_and_keep_the_order_of_one_sender() -> None:
    times = [T0, T0 + 1, T0, T0, T0 + 1, T0]
    made = [make(timestamp=ms) for ms in times]

    assert all(event.event_id.version == 7 and event.event_id.int >> 80 == event.timestamp for event in made)
    of_t0 = [event.event_id for event in made if event.timestamp == T0]
    assert all(one < other for one, other in pairwise(of_t0))


def test_what_the_caller_changes_later_does_not_change_the_event() -> None:
    properties: dict[str, Any] = {**PENDING, "input": {"list": [1]}}
    event = make(properties=properties)

    properties["input"]["list"].append(2)

    assert event.properties["input"] == {"list": [1]}


@pytest.mark.parametrize("field", ["tenant_id", "entity_id", "app"])
@pytest.mark.parametrize("value", ["a#b", "a b", "x" * 257, "", "é", "a\n", None, 7, b"a"])
def test_an_id_that_is_none_is_refused(field: str, value: Any) -> None:
    if field == "app" and value is None:
        return

    with pytest.raises(InvalidEvent) as refused:
        make(**{field: value})

    assert refused.value.field == field


@pytest.mark.parametrize("value", ["A-z_0.9:x", "x" * 256, ".", "-"])
def test_an_id_may_be_what_the_rules_allow(value: str) -> None:
    assert make(tenant_id=value, entity_id=value, app=value).entity_id == value


@pytest.mark.parametrize("value", [T0 // 1000, float(T0), True, -T0, 0, 10**13, "now", math.nan])
def test_a_time_that_is_not_in_milliseconds_is_refused(value: Any) -> None:
    with pytest.raises(InvalidEvent, match="milliseconds") as refused:
        make(timestamp=value)

    assert refused.value.field == "timestamp"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"in": value}
    return value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": math.nan}, "properties.a"),
        ({"a": [1, {"b": math.inf}]}, "properties.a[1].b"),
        ({"a": b"bytes"}, "properties.a"),
        ({"a": {"b": {1, 2}}}, "properties.a.b"),
        ({"a": datetime(2030, 1, 1)}, "properties.a"),
        ({"a": "\ud800"}, "properties.a"),
        ({"a": 10**4_300}, "properties.a"),
        ({"a": {1: 2}}, "properties.a"),
        ({"_s3Overflow": {}}, "properties._s3Overflow"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        make(properties={**PENDING, **value})

    assert refused.value.field == path


def test_nesting_ends_at_sixty_four_levels() -> None:
    make(properties={**PENDING, "x": deep(63)})

    with pytest.raises(InvalidEvent, match="nested deeper"):
        make(properties={**PENDING, "x": deep(64)})
    with pytest.raises(InvalidEvent, match="context"):
        make(context={"x": deep(64)})


@pytest.mark.parametrize(
    ("event_type", "change", "path"),
    [
        ("Task Failed", {"source": "me"}, "properties.source"),
        ("Task Timeout", {"signal": "SIGHUP"}, "properties.signal"),
        ("Task Pending", {"requestId": None}, "properties.requestId"),
        ("Task Pending", {"requestId": "a b"}, "properties.requestId"),
        ("Task Pending", {"requestId": "a\n"}, "properties.requestId"),
        ("Task Pending", {"dependsOn": "a"}, "properties.dependsOn"),
        ("Task Pending", {"run": 0}, "properties.run"),
        ("Task Processing Failed", {"attemptNumber": "2"}, "properties.attemptNumber"),
        ("Task Processing Started", {"effectiveUntil": T0}, "properties.effectiveUntil"),
        ("Task Processing Started", {"startedAt": T0 // 1000}, "properties.startedAt"),
        ("Task Heartbeat", {"memoryUsage": {}}, "properties.memoryUsage.rss"),
        ("Task Heartbeat", {"lastActivity": {"type": "x", "timestamp": T0}}, "properties.lastActivity.timestamp"),
        ("Job Created", {"tasks": [{"taskId": "a"}]}, "properties.tasks[0].name"),
        ("Job Completed", {"taskStatuses": {"a": 1}}, "properties.taskStatuses[...]"),
        ("Task Health Check", {"summary": {}}, "properties.summary.totalProcessing"),
    ],
)
def test_a_wrong_property_is_refused_with_its_path(event_type: str, change: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        make(event_type, properties={**SAMPLES[event_type], **change})

    assert refused.value.field == path


@pytest.mark.parametrize("event_type", list(SAMPLES))
def test_a_missing_property_is_refused_with_its_path(event_type: str) -> None:
    fields = msgspec.structs.fields(EVENT_CLASSES[event_type])
    for field in (field for field in fields if field.required):
        left = {name: value for name, value in SAMPLES[event_type].items() if name != field.encode_name}

        with pytest.raises(InvalidEvent) as refused:
            make(event_type, properties=left)

        assert refused.value.field == f"properties.{field.encode_name}"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"event_type": "a#b"}, "event_type"),
        ({"event_type": ""}, "event_type"),
        ({"event_type": "x" * 129}, "event_type"),
        ({"event_type": "Store Opened"}, "entity_type"),
        ({"entity_type": "task"}, "entity_type"),
        ({"entity_type": "A#B"}, "entity_type"),
        ({"properties": []}, "properties"),
        ({"properties": None}, "properties"),
        ({"context": [1]}, "context"),
        ({"event_id": "ddf71f63-b036-4ac7-ad0f-77a7fdfca352"}, "event_id"),
    ],
)
def test_what_is_no_event_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        make(**{"event_type": "Task Pending", **given})

    assert refused.value.field == field


@pytest.mark.parametrize("name", ["SK", "GSI2PK", "tenantId", "properties"])
def test_an_item_that_lacks_something_is_no_event(name: str) -> None:
    item = make().to_item()
    del item[name]

    with pytest.raises(InvalidEvent) as refused:
        JournalEvent.from_item(item)

    assert refused.value.field == name
