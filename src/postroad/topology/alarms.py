"""Alarms: evaluated by Postroad itself or written as rules for Prometheus, with the runbook of each."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Final, Literal

from postroad.errors import NotPermitted
from postroad.telemetry import get_logger
from postroad.topology.declarations import AlarmDecl, QueueDecl
from postroad.topology.lint import check
from postroad.topology.plans import Site, Sited
from postroad.topology.topology import Topology

State = Literal["ok", "alarm", "no_data"]
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class AlarmState:
    """The current state of one alarm.

    Attributes:
        name: The alarm.
        state: "ok", "alarm" or "no_data".
        value: The current value of the metric; None if it is not known.
        threshold: What the value is compared with.
    """

    name: str
    state: State
    value: float | None
    threshold: float


def evaluate_alarms(topology: Topology, backend: Sited) -> tuple[AlarmState, ...]:
    """Evaluate every alarm of a topology once, and return the states, `no_data` where a value cannot be read.

    Args:
        topology: The topology that declares the alarms.
        backend: The store to read the values from.

    Raises:
        TopologyError: The topology has errors; the message lists them.

    Example:
        ringing = [alarm.name for alarm in evaluate_alarms(topology, backend) if alarm.state == "alarm"]
    """
    check(topology)
    site = backend.site()
    alarms = [each for each in topology.resources if isinstance(each, AlarmDecl)]
    return tuple(_evaluated(site, topology, alarm) for alarm in alarms)


def _evaluated(site: Site, topology: Topology, alarm: AlarmDecl) -> AlarmState:
    state: State = "no_data"
    value: float | None = None
    try:
        value = site.measure(topology, alarm)
        if value is not None:
            state = "alarm" if _COMPARE[alarm.comparison](value, alarm.threshold) else "ok"
        elif site.gathers_metrics and alarm.missing == "breaching":
            state = "alarm"
    except NotPermitted as error:
        get_logger("topology").warning("alarm_not_measured", alarm=alarm.name, error=str(error))
    return AlarmState(alarm.name, state, value, float(alarm.threshold))


def dead_letter_queues(topology: Topology) -> list[str]:
    """Return the queues that take the dead letters of another queue."""
    queues = [each for each in topology.resources if isinstance(each, QueueDecl)]
    return sorted({each.spec.dead_letter for each in queues if each.spec.dead_letter is not None})


_RUNBOOKS: Final = {
    "event_outbox_backlog": "outbox-backlog",
    "event_publish_lag_seconds": "outbox-backlog",
    "event_consumer_lag_seconds": "consumer-lag",
    "dead_letter_count": "failed-rows",
}


def runbook(alarm: AlarmDecl) -> str:
    """Return what the alarm watches, and the path of its runbook if it has one."""
    watched = f"{alarm.metric} of {alarm.resource}"
    page = _RUNBOOKS.get(alarm.metric)
    return watched if page is None else f"{watched}. Runbook: docs/runbooks/{page}.md"


def alarm_rules(topology: Topology) -> dict[str, Any]:
    """Return the alarms on metrics that Postroad itself exports, as a file of Prometheus's alerting rules.

    Args:
        topology: The topology that declares the alarms.

    Raises:
        TopologyError: The topology has errors; the message lists them.

    Example:
        Path("alerts.yml").write_text(json.dumps(alarm_rules(transfers_topology())))  # JSON is YAML, too
    """
    check(topology)
    alarms = [each for each in topology.resources if isinstance(each, AlarmDecl) and each.namespace == "Postroad"]
    return {"groups": [{"name": topology.name, "rules": [_rule(alarm) for alarm in alarms]}]}


def _rule(alarm: AlarmDecl) -> dict[str, Any]:
    expression = f"{alarm.metric} {alarm.comparison} {alarm.threshold:g}"
    if alarm.missing == "breaching":
        # While the database does not answer, the value is NaN, which is not greater than anything.
        expression += f" or {alarm.metric} != {alarm.metric} or absent({alarm.metric})"
    annotations = {"description": runbook(alarm)}
    rule: dict[str, Any] = {"alert": alarm.name, "expr": expression, "annotations": annotations}
    if alarm.periods > 1:
        rule["for"] = f"{alarm.period * alarm.periods}s"
    return rule
