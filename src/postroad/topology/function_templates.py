"""Templates with functions on Lambda: agents, and tasks with their journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from postroad.agents import tables
from postroad.journal import EVENTS, table_name
from postroad.queues import MAX_RETENTION
from postroad.tasks import queue_specs
from postroad.topology.declarations import (
    DEFAULT_BUS,
    AlarmDecl,
    BucketDecl,
    BusDecl,
    Component,
    FunctionDecl,
    QueueDecl,
    Resource,
    RuleDecl,
    StreamDecl,
    TableDecl,
    TriggerDecl,
)
from postroad.topology.names import ACCOUNT, name_finding, role_name
from postroad.topology.queue_templates import VISIBLE, declared, queue
from postroad.topology.topology import Topology, refuse

LAMBDA = "lambda.amazonaws.com"
_ITERATOR_AGE_MS = 60_000
_PUBLISHER_SECONDS = 360
_BATCH = 100
_UNTIL_IT_EXPIRES = -1


def agents_topology(prefix: str = "") -> Topology:
    """Return everything that agents need; every name begins with `prefix`.

    Args:
        prefix: The beginning of each name; none by default.

    Example:
        agents_topology("prod-")
    """
    names = {table.name: f"{prefix}{table.name}" for table in tables.TABLES}
    stream, dead = f"{prefix}{tables.EVENTS_STREAM}", f"{prefix}{tables.DEAD_QUEUE}"
    rejected, queues = f"{prefix}{tables.REJECTED_QUEUE}", f"{prefix}{tables.queue_name('*')}"
    functions = _functions(prefix, names, stream, rejected)
    return Topology(
        f"{prefix}agents",
        (
            *(TableDecl.of(names[table.name], table.shape) for table in tables.TABLES),
            StreamDecl(stream, tables.STREAM_SHARDS, tables.STREAM_RETENTION_HOURS),
            declared(tables.dead_letters, dead),
            declared(tables.rejects, rejected),
            *functions,
            RuleDecl(f"{prefix}agents-sweep", DEFAULT_BUS, f"{prefix}sweeper", "sweeper", schedule="rate(1 minute)"),
            *_alarms(prefix),
        ),
        components=tuple(
            replace(each, role=role_name(f"{prefix}{each.name}")) if prefix else each
            for each in _components(names, stream=stream, dead=dead, rejected=rejected, queues=queues)
        ),
        tags={"ManagedBy": "postroad"},
    )


def _functions(prefix: str, names: dict[str, str], stream: str, rejected: str) -> Sequence[Resource]:
    environment = {table.variable: names[table.name] for table in tables.TABLES if table.variable is not None}
    environment["EVENTS_STREAM"] = stream
    rows = names[tables.SUBSCRIBER_EVENTS.name]

    def function(name: str, timeout: int = 60, **settings: Any) -> FunctionDecl:
        handler = f"postroad.lambdas.{name}.handler"
        return FunctionDecl(f"{prefix}{name}", handler, name, timeout, environment=environment, **settings)

    return (
        function("aggregator", triggers=(_trigger(stream),), on_failure=rejected),
        function("publisher", _PUBLISHER_SECONDS, triggers=(_trigger(rows),), on_failure=rejected),
        function("sweeper"),
    )


def _trigger(source: str) -> TriggerDecl:
    """Return a trigger that retries until the record expires, because a failure destination gets no records."""
    return TriggerDecl(source, batch_size=_BATCH, max_attempts=_UNTIL_IT_EXPIRES)


def _components(names: dict[str, str], *, stream: str, dead: str, rejected: str, queues: str) -> tuple[Component, ...]:
    everything = tuple(names.values())
    agents, subscribers = names[tables.AGENTS.name], names[tables.SUBSCRIBERS.name]
    events = names[tables.SUBSCRIBER_EVENTS.name]
    sending: dict[str, Any] = {
        "sends": (queues, rejected),
        "reads": (agents, subscribers, events),
        "writes": (agents, subscribers),
    }
    return (
        Component("aggregator", reads=(subscribers,), writes=(events,), sends=(rejected,), trust=LAMBDA),
        Component("publisher", **sending, trust=LAMBDA),
        Component("sweeper", **sending, trust=LAMBDA),
        Component(
            "api",
            creates=(queues,),
            sends=(queues,),
            consumes=(queues,),
            operates=(dead,),
            observes=(rejected,),
            puts=(stream,),
            reads=everything,
            writes=everything,
        ),
    )


def _alarms(prefix: str) -> tuple[AlarmDecl, ...]:
    def alarm(name: str, suffix: str, metric: str, threshold: int, **settings: Any) -> AlarmDecl:
        alarm_name, function = f"{prefix}agents-{name}-{suffix}", f"{prefix}{name}"
        return AlarmDecl(alarm_name, metric, function, threshold, namespace="AWS/Lambda", **settings)

    return (
        *(
            alarm(name, "iterator-age", "IteratorAge", _ITERATOR_AGE_MS, comparison=">")
            for name in ("aggregator", "publisher")
        ),
        *(alarm(name, "throttles", "Throttles", 1, statistic="Sum") for name in ("aggregator", "publisher", "sweeper")),
    )


_LOG_EVENT = "log-event"
_ENDINGS = ["Task Completed", "Task Failed", "Task Timeout", "Task Cancelled"]
_ALERT_SECONDS = 30
# AWS recommends a visibility of six times the timeout of the function that reads the queue.
_QUEUE_OF_A_FUNCTION = 6


def task_topology(stage: str) -> Topology:
    """Return everything that tasks, jobs and their journal need at one stage.

    Args:
        stage: The name of the stage, with which every name begins.

    Raises:
        TopologyError: AWS does not accept names that begin with the stage.

    Example:
        task_topology("prod")
    """
    if (finding := name_finding("queue", f"{stage}-tasks" if stage else "")) is not None:
        raise refuse([finding])
    names = _Names(stage)
    return Topology(
        f"{stage}-tasks",
        (
            *(TableDecl.of(names.table, EVENTS), BusDecl(names.bus), BucketDecl(names.bucket)),
            *(*names.queues(), *names.functions(), *names.rules()),
            *(AlarmDecl(f"{name}-messages", VISIBLE, name, 1) for name in (names.failed, names.archive)),
        ),
        components=names.components(),
        tags={"ManagedBy": "postroad", "Environment": stage},
    )


class _Names:
    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.table = table_name(stage)
        self.bus = f"events-{stage}"
        # Names of buckets have neither capitals nor underscores.
        self.bucket = f"events-{stage.lower().replace('_', '-')}-overflow-{ACCOUNT}"
        self.failed = f"{stage}-eventbridge-target-dlq"
        self.archive = f"{stage}-eventbridge-archive"
        self.save = f"{stage}-save-event-to-dynamo"
        self.dispatch = f"{stage}-dispatcher"
        self.health = f"{stage}-health-check"
        self.alert = f"{stage}-eventbridge-dlq-alert"
        self.dead, self.tasks, self.wakeups = queue_specs(f"{stage}-tasks")

    def queues(self) -> tuple[Resource, ...]:
        return (
            *(QueueDecl(spec) for spec in (self.dead, self.tasks, self.wakeups)),
            queue(self.failed, retention=MAX_RETENTION, visibility=_QUEUE_OF_A_FUNCTION * _ALERT_SECONDS),
            queue(self.archive, retention=MAX_RETENTION),
        )

    def functions(self) -> tuple[Resource, ...]:
        environment = {"EVENTS_TABLE": self.table, "POSTROAD_STAGE": self.stage}
        senders = {**environment, "EVENT_BUS_NAME": self.bus, "EVENTS_BUCKET": self.bucket}
        return (
            self._function(self.save, "save_event", environment, on_failure=self.failed),
            self._function(self.dispatch, "dispatcher", senders, timeout=60, on_failure=self.failed),
            self._function(
                self.health, "health_check", {**senders, "SLACK_WEBHOOK_URL": ""}, timeout=60, on_failure=self.failed
            ),
            self._function(
                self.alert,
                "eventbridge_dlq_alert",
                {"SLACK_WEBHOOK_URL": "", "ARCHIVE_QUEUE_URL": f"${{Url:{self.archive}}}"},
                timeout=_ALERT_SECONDS,
                triggers=(TriggerDecl(self.failed, batch_size=1),),
            ),
        )

    def _function(self, name: str, module: str, environment: dict[str, str], **settings: Any) -> FunctionDecl:
        return FunctionDecl(name, f"postroad.lambdas.{module}.handler", name, environment=environment, **settings)

    def rules(self) -> tuple[Resource, ...]:
        ended = {
            "detail-type": [_LOG_EVENT],
            "detail": {"eventType": _ENDINGS, "properties": {"jobId": [{"exists": True}]}},
        }
        return (
            self._rule(self.save, self.bus, "SaveEventToDynamo", pattern={"detail-type": [_LOG_EVENT]}),
            self._rule(self.dispatch, self.bus, "Dispatcher", pattern=ended),
            self._rule(self.health, DEFAULT_BUS, "HealthCheck", schedule="rate(5 minutes)"),
        )

    def _rule(self, function: str, bus: str, target_id: str, **when: Any) -> RuleDecl:
        return RuleDecl(function, bus, function, f"{self.stage}-{target_id}", dead_letter=self.failed, **when)

    def components(self) -> tuple[Component, ...]:
        journal: dict[str, Any] = {
            "reads": (self.table, self.bucket),
            "writes": (self.table, self.bucket),
            "publishes": (self.bus,),
        }
        work, wakeups, dead = self.tasks.name, self.wakeups.name, self.dead.name
        return (
            Component(self.save, writes=(self.table,), trust=LAMBDA),
            Component(self.dispatch, **journal, sends=(work,), trust=LAMBDA),
            Component(self.health, **journal, trust=LAMBDA),
            Component(self.alert, sends=(self.archive,), trust=LAMBDA),
            Component(f"{self.stage}-producer", **journal, sends=(work, wakeups)),
            Component(f"{self.stage}-worker", **journal, sends=(work, wakeups), consumes=(work, wakeups, dead)),
            Component(f"{self.stage}-operator", operates=(dead,), observes=(work, wakeups, self.failed, self.archive)),
        )
