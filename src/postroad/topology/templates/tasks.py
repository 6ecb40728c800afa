"""Tasks and jobs: the events table, the bus in front of it, the functions behind it, and the workers' queues."""

from __future__ import annotations

from typing import Any

from postroad.journal import EVENTS, table_name
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
    TableDecl,
    TriggerDecl,
)
from postroad.topology.findings import refuse
from postroad.topology.names import ACCOUNT, name_finding
from postroad.topology.templates.agents import LAMBDA
from postroad.topology.templates.chat import VISIBLE
from postroad.topology.templates.queues import FOURTEEN_DAYS, queue
from postroad.topology.topology import Topology

_LOG_EVENT = "log-event"
_ENDINGS = ["Task Completed", "Task Failed", "Task Timeout", "Task Cancelled"]
_ALERT_SECONDS = 30
# AWS asks that a queue hides its messages for six times the timeout of the function that it calls.
_QUEUE_OF_A_FUNCTION = 6


def task_topology(stage: str) -> Topology:
    """Everything that tasks, jobs and their journal need at this stage."""
    if (finding := name_finding("queue", f"{stage}-tasks" if stage else "")) is not None:
        raise refuse([finding])
    names = _Names(stage)
    return Topology(
        f"{stage}-tasks",
        (*names.stores(), *names.queues(), *names.functions(), *names.rules(), *names.alarms()),
        components=names.components(),
        tags={"ManagedBy": "postroad", "Environment": stage},
    )


class _Names:
    """The names of one stage, and what is declared under them."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.table = table_name(stage)
        self.bus = f"events-{stage}"
        # Names of buckets know neither capitals nor underscores.
        self.bucket = f"events-{stage.lower().replace('_', '-')}-overflow-{ACCOUNT}"
        self.failed = f"{stage}-eventbridge-target-dlq"
        self.archive = f"{stage}-eventbridge-archive"
        self.save = f"{stage}-save-event-to-dynamo"
        self.dispatch = f"{stage}-dispatcher"
        self.health = f"{stage}-health-check"
        self.alert = f"{stage}-eventbridge-dlq-alert"
        self.dead, self.tasks, self.wakeups = queue_specs(f"{stage}-tasks")

    def stores(self) -> tuple[Resource, ...]:
        return TableDecl.of(self.table, EVENTS), BusDecl(self.bus), BucketDecl(self.bucket)

    def queues(self) -> tuple[Resource, ...]:
        return (
            *(QueueDecl(spec) for spec in (self.dead, self.tasks, self.wakeups)),
            queue(self.failed, retention=FOURTEEN_DAYS, visibility=_QUEUE_OF_A_FUNCTION * _ALERT_SECONDS),
            queue(self.archive, retention=FOURTEEN_DAYS),
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

    def alarms(self) -> tuple[Resource, ...]:
        return tuple(AlarmDecl(f"{name}-messages", VISIBLE, name, 1) for name in (self.failed, self.archive))

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
