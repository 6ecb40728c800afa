"""Inputs that the catalogue's file cannot hold: too long, too deep, not text, or not data at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

from tests.bus.vocabulary import Placed
from tests.notifications.people import push_to

import postroad

NAN = float("nan")
LONE = "\ud800"


@postroad.event
class Anything:
    """An event whose field takes whatever a test gives."""

    value: Any


def nested(levels: int) -> Any:
    """Return lists inside of lists."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def nested_object(levels: int) -> Any:
    """Return objects inside of objects."""
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def envelope(**changes: Any) -> str:
    """Return a valid flat envelope with changes; `...` takes a field away."""
    fields = {
        "event_type": "tests.bus.vocabulary:Placed",
        "event_id": str(uuid4()),
        "created_at": "2030-01-01T00:00:00+00:00",
        "publisher_id": "p",
        "payload": {"number": 1},
    }
    return json.dumps({name: value for name, value in (fields | changes).items() if value is not ...})


def received(body: str, **more: Any) -> Callable[[], dict[str, Any]]:
    """Return the builder of a body that a surface receives."""
    return lambda: {"do": "receive", "body": body, **more}


def letter(**changes: Any) -> Callable[[], dict[str, Any]]:
    """Return the builder of an envelope that a bus receives."""
    return lambda: {"do": "receive", "body": envelope(**changes)}


def published(event: Any) -> Callable[[], dict[str, Any]]:
    """Return the builder of an event to publish."""
    return lambda: {"do": "publish", "event": event}


def push(**changes: Any) -> str:
    """Return a valid push with changes; `...` takes a field away."""
    fields = json.loads(push_to("token").to_json()) | changes
    return json.dumps({name: value for name, value in fields.items() if value is not ...})


def a_push(**changes: Any) -> Callable[[], dict[str, Any]]:
    """Return the builder of a push that the worker receives."""
    return received(push(**changes))


def event_body(**changes: Any) -> Callable[[], dict[str, Any]]:
    """Return the builder of a request that publishes an agent's event."""
    return lambda: {"json": {"eventType": "counted", "data": {}} | changes}


def tasks(number: int) -> list[dict[str, Any]]:
    """Return tasks that depend on nothing."""
    return [{"taskId": f"t{each}", "name": "echo"} for each in range(number)]


def _takes_anything(*stores: str) -> None:
    """A task whose arguments have no names."""


HTTP: dict[str, Callable[[], Any]] = {
    "http-100000-brackets": lambda: {"body": b"[" * 100_000},
    "http-5000-digits": lambda: {"body": b'{"messages": ' + b"1" * 5_000 + b"}"},
    "http-invalid-utf8": lambda: {"body": b'{"messages": [{"body": "\xff"}]}'},
    "http-body-too-long": lambda: {"body": b" " * 2_097_153},
    "http-chunked-body-too-long": lambda: {"body": (b" " * 65_536 for _ in range(33))},
    "http-101-messages": lambda: {"json": {"messages": [{"body": "x"}] * 101}},
    "http-message-with-11-attributes": lambda: {
        "json": {"messages": [{"body": "x", "attributes": {f"a{each}": "x" for each in range(11)}}]}
    },
    "http-long-idempotency-key": lambda: {
        "json": {"messages": [{"body": "x"}]},
        "headers": {"Idempotency-Key": "x" * 129},
    },
    "http-queue-name-81": lambda: {"method": "PUT", "path": "/queues/" + "q" * 81, "json": {}},
    "http-101-headers": lambda: {"method": "GET", "path": "/queues", "headers": {f"X-{n}": "x" for n in range(101)}},
    "http-job-51-tasks": lambda: {"path": "/jobs", "json": {"tasks": tasks(51)}},
    "http-task-name-of-65": lambda: {"path": "/tasks", "json": {"name": "n" * 65}},
    "http-task-input-too-deep": lambda: {"path": "/tasks", "json": {"name": "echo", "input": nested_object(65)}},
    "agents-too-deep": event_body(data=nested_object(65)),
    "agents-too-large": event_body(data={"text": "x" * 262_144}),
    "agents-type-257": event_body(eventType="t" * 257),
    "agents-id-65": lambda: {"path": "/agents", "as": "admin", "json": {"agentId": "a" * 65}},
    "agents-501-events": lambda: {
        "path": "/events/batch",
        "json": {"events": [{"eventType": "counted", "data": {}}] * 501},
    },
    "agents-101-receipts": lambda: {"path": "/agents/ann/acks", "json": {"receipts": ["r"] * 101}},
    "agents-21-event-types": lambda: {
        "method": "PUT",
        "path": "/agents/cat/subscriptions/ann",
        "as": "cat",
        "json": {"eventTypes": [f"t{each}" for each in range(21)]},
    },
}
BUS: dict[str, Callable[[], Any]] = {
    "bus-publish-none": published(None),
    "bus-publish-number": published(5),
    "bus-publish-class": published(Placed),
    "bus-publish-plain-object": published(object()),
    "bus-publish-unencodable": published(Anything(object())),
    "bus-publish-nan": published(Anything(NAN)),
    "bus-publish-deep": published(Anything(nested(70))),
    "bus-publish-surrogate": published(Anything(LONE)),
    "bus-publish-2mb": published(Anything("x" * 2_000_000)),
    "bus-config-nan": lambda: {"do": "config", "publish_timeout_seconds": NAN},
    "bus-group-too-long": lambda: {"do": "group", "topic": "orders", "group": "g" * 80},
    "bus-body-100000-brackets": received("[" * 100_000),
    "bus-body-trailing": received(envelope() + "x"),
    "bus-type-os-system": letter(event_type="os:system"),
    "bus-type-eval": letter(event_type="builtins:eval"),
    "bus-type-dotted": letter(event_type="antigravity.fly"),
    "bus-type-1mb": letter(event_type="x" * 900_000),
    "bus-field-wrong-type": letter(payload={"number": "one"}),
    "bus-field-null": letter(payload={"number": None}),
    "bus-payload-missing": letter(payload=...),
    "bus-event-id-not-a-uuid": letter(event_id="7"),
    "bus-version-0": letter(version=0),
    "bus-version-99": letter(version=99),
    "bus-missing-field": letter(event_type="tests.bus.vocabulary:Stepped", payload={}),
    "bus-submit-timeout-nan": lambda: {"do": "submit", "timeout": NAN},
    "bus-submit-naive-deadline": lambda: {"do": "submit", "deadline": datetime(2030, 1, 1)},
    "bus-on-not-a-class": lambda: {"do": "on", "event_type": "orders.placed"},
    "bus-on-not-callable": lambda: {"do": "on", "handler": "print"},
    "bus-subscribe-not-a-class": lambda: {"do": "subscribe", "event_type": "orders.placed"},
    "bus-subscribe-not-callable": lambda: {"do": "subscribe", "handler": 5},
    "bus-timeout-on-sync-handler": lambda: {"do": "on", "handler": lambda event: None, "timeout": 5},
    "bus-no-attempts": lambda: {"do": "on", "handler": lambda event: None, "max_attempts": 0},
    "bus-middleware-returns-nothing": lambda: {"do": "use", "middleware": lambda handler: None},
    "bus-event-not-a-class": lambda: {"do": "event", "cls": 5},
}
QUEUE: dict[str, Callable[[], Any]] = {
    "queue-too-large": lambda: {"do": "send", "body": "x" * 1_048_577},
    "queue-not-utf8": lambda: {"do": "send", "body": b"\xff\xfe"},
    "queue-surrogate": lambda: {"do": "send", "body": LONE},
    "queue-number-body": lambda: {"do": "send", "body": 5},
    "queue-11-attributes": lambda: {"do": "send", "attributes": {f"a{each}": "x" for each in range(11)}},
    "queue-group-129": lambda: {"do": "send", "queue": "lined.fifo", "group": "g" * 129, "dedup_id": "d"},
    "queue-dedup-id-129": lambda: {"do": "send", "queue": "lined.fifo", "group": "g", "dedup_id": "d" * 129},
    "queue-delay-nan": lambda: {"do": "send", "delay": NAN},
    "queue-name-81": lambda: {"do": "create", "name": "q" * 81},
    "queue-eleven-sources": lambda: {
        "do": "create",
        "name": "many",
        "redrive_allow": tuple(f"q{each}" for each in range(11)),
    },
}
DATABASES: dict[str, Callable[[], Any]] = {
    "outbox-tenant-65": lambda: {"do": "add", "tenant_id": "a" * 65},
    "outbox-type-201": lambda: {"do": "add", "type": "a" * 201},
    "outbox-key-none": lambda: {"do": "add", "key": None},
    "outbox-payload-nan": lambda: {"do": "add", "payload": {"a": [NAN]}},
    "outbox-payload-objects": lambda: {"do": "add", "payload": {"a": {object()}}},
    "outbox-payload-deep": lambda: {"do": "add", "payload": nested_object(65)},
    "outbox-payload-surrogate": lambda: {"do": "add", "payload": {"a": LONE}},
    "outbox-too-large": lambda: {"do": "add", "payload": {"a": "x" * 262_145}},
    "outbox-naive-time": lambda: {"do": "add", "occurred_at": datetime(2025, 1, 1)},
    "outbox-config-backoff-nan": lambda: {"do": "config", "backoff": (1, NAN)},
    "outbox-config-backoff-empty": lambda: {"do": "config", "backoff": ()},
    "inbox-1mib-of-brackets": received("[" * 1_000_000),
}
WORK: dict[str, Callable[[], Any]] = {
    "worker-id-257": lambda: {"do": "append", "entity_id": "e" * 257},
    "worker-bytes-in-properties": lambda: {"do": "append", "properties": {"requestId": "r", "name": "n", "x": b"x"}},
    "worker-set-in-properties": lambda: {"do": "append", "properties": {"requestId": "r", "name": "n", "x": {1}}},
    "worker-nan-in-properties": lambda: {"do": "append", "properties": {"requestId": "r", "name": "n", "x": NAN}},
    "worker-deep-properties": lambda: {
        "do": "append",
        "properties": {"requestId": "r", "name": "n", "input": nested_object(70)},
    },
    "worker-name-65": lambda: {"do": "submit", "name": "n" * 65},
    "worker-input-unencodable": lambda: {"do": "submit", "input": {"x": object()}},
    "worker-timeout-nan": lambda: {"do": "worker", "timeout": NAN},
    "worker-task-with-star-args": lambda: {"do": "register", "function": _takes_anything},
    "worker-retry-on-no-exception": lambda: {"do": "register", "name": "t", "retry_on": (5,)},
    "jobs-51-tasks": lambda: {"do": "submit", "tasks": tasks(51)},
    "jobs-no-list": lambda: {"do": "submit", "tasks": None},
    "jobs-long-task-id": lambda: {"do": "submit", "tasks": [{"taskId": "t" * 129, "name": "echo"}]},
    "jobs-input-with-nan": lambda: {"do": "submit", "tasks": [{"taskId": "a", "name": "echo", "input": {"x": NAN}}]},
}
CHAT: dict[str, Callable[[], Any]] = {
    "topology-project-too-long": lambda: {"do": "chat", "project": "p" * 80, "env": "prod"},
    "topology-10000-deep": lambda: {"do": "read", "text": "[" * 10_000 + "]" * 10_000},
    "push-no-tokens": a_push(deviceTokens=[]),
    "push-tokens-not-a-list": a_push(deviceTokens="token"),
    "push-501-tokens": a_push(deviceTokens=[f"t{each}" for each in range(501)]),
    "push-empty-token": a_push(deviceTokens=["good", ""]),
    "push-token-not-text": a_push(deviceTokens=["good", 5]),
    "push-token-with-slash": a_push(deviceTokens=["a/b"]),
    "push-token-with-dots": a_push(deviceTokens=["..", "x"]),
    "push-token-with-newline": a_push(deviceTokens=["a\r\nX-Evil: 1"]),
    "push-data-not-text": a_push(payload={"title": "t", "body": "b", "data": {"count": 3}}),
    "push-data-aps": a_push(payload={"title": "t", "body": "b", "data": {"aps": "x"}}),
    "push-long-title": a_push(payload={"title": "t" * 1_025, "body": "b"}),
    "push-long-body": a_push(payload={"title": "t", "body": "b" * 4_097}),
    "push-naive-time": a_push(timestamp="2024-01-15T10:30:00"),
    "push-time-yesterday": a_push(timestamp="yesterday"),
    "push-time-number": a_push(timestamp=1_705_314_600),
    "push-time-year-0": a_push(timestamp="0000-01-15T10:30:00Z"),
    "push-type-missing": a_push(type=...),
    "push-type-unknown": a_push(type="postcard"),
    "push-type-of-the-other-queue": lambda: {"do": "receive", "queue": "offline", "body": push()},
    "push-duplicate-keys": received(push()[:-1] + ', "userId": "eve"}'),
    "push-trailing-bytes": received(push() + "x"),
    "push-5000-digits": received(push()[:-1] + ', "extra": ' + "1" * 5_000 + "}"),
    "push-nan": received(push()[:-1] + ', "extra": NaN}'),
    "push-surrogate": received(push()[:-1] + ', "userId": "\\ud800"}'),
    "push-invalid-utf8": lambda: {"do": "parse", "body": b'{"type": "\xff"}'},
    "push-user-empty": a_push(userId=""),
    "push-user-long": a_push(userId="u" * 257),
    "push-user-control-character": a_push(userId="ann\x07"),
}
BUILDERS = HTTP | BUS | QUEUE | DATABASES | WORK | CHAT
