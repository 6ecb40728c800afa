"""Alarms: evaluated where nobody else does, written for Prometheus, and what to do when one rings."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Final, Literal

from postroad.errors import NotPermitted
from postroad.queues import QueueStats
from postroad.telemetry import get_logger
from postroad.topology.declarations import AlarmDecl, QueueDecl
from postroad.topology.lint import check
from postroad.topology.plans import Site, Sited
from postroad.topology.topology import Topology

State = Literal["ok", "alarm", "no_data"]
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class AlarmState:
    """One alarm as it is now; `value` is None when nobody knows."""

    name: str
    state: State
    value: float | None
    threshold: float


def evaluate_alarms(topology: Topology, backend: Sited) -> tuple[AlarmState, ...]:
    """Every alarm of the topology, judged once by what the store tells now; `no_data` where it may not be asked."""
    check(topology)
    site = backend.site()
    alarms = [each for each in topology.resources if isinstance(each, AlarmDecl)]
    return tuple(_state(site, topology, alarm) for alarm in alarms)


def _state(site: Site, topology: Topology, alarm: AlarmDecl) -> AlarmState:
    """The alarm as the store tells it; `no_data` where these credentials may not ask."""
    try:
        return _judged(alarm, site.measure(topology, alarm), site)
    except NotPermitted as error:
        get_logger("topology").warning("alarm_not_measured", alarm=alarm.name, error=str(error))
        return AlarmState(alarm.name, "no_data", None, float(alarm.threshold))


def measured(alarm: AlarmDecl, stats: QueueStats | None) -> float | None:
    """The metric of a queue, as its own numbers tell it."""
    if stats is None:
        return None
    counts = {
        "ApproximateNumberOfMessagesVisible": stats.visible,
        "ApproximateNumberOfMessagesNotVisible": stats.in_flight,
        "ApproximateNumberOfMessagesDelayed": stats.delayed,
        "ApproximateAgeOfOldestMessage": stats.oldest_age_seconds,
    }
    if alarm.metric == "ApproximateAgeOfOldestMessage" and stats.visible + stats.in_flight + stats.delayed == 0:
        return 0.0
    value = counts.get(alarm.metric)
    return None if value is None else float(value)


def dead_letter_queues(topology: Topology) -> list[str]:
    """The queues that are some other queue's dead letters."""
    queues = [each for each in topology.resources if isinstance(each, QueueDecl)]
    return sorted({each.spec.dead_letter for each in queues if each.spec.dead_letter is not None})


def _judged(alarm: AlarmDecl, value: float | None, site: Site) -> AlarmState:
    if value is None:
        state: State = "alarm" if site.gathers_metrics and alarm.missing == "breaching" else "no_data"
        return AlarmState(alarm.name, state, None, float(alarm.threshold))
    over = _COMPARE[alarm.comparison](value, alarm.threshold)
    return AlarmState(alarm.name, "alarm" if over else "ok", value, float(alarm.threshold))


_RUNBOOKS: Final = {
    "event_outbox_backlog": "outbox-backlog",
    "event_publish_lag_seconds": "outbox-backlog",
    "event_consumer_lag_seconds": "consumer-lag",
    "dead_letter_count": "failed-rows",
}


def runbook(alarm: AlarmDecl) -> str:
    """What the alarm watches, and where its runbook lies if it has one."""
    said = f"{alarm.metric} of {alarm.resource}"
    page = _RUNBOOKS.get(alarm.metric)
    return said if page is None else f"{said}. Runbook: docs/runbooks/{page}.md"


_OURS = "Postroad"


def alarm_rules(topology: Topology) -> dict[str, Any]:
    """The alarms on metrics that Postroad itself exports, as a file of alerting rules (JSON is YAML too)."""
    check(topology)
    alarms = [each for each in topology.resources if isinstance(each, AlarmDecl) and each.namespace == _OURS]
    return {"groups": [{"name": topology.name, "rules": [_rule(alarm) for alarm in alarms]}]}


def _expression(alarm: AlarmDecl) -> str:
    over = f"{alarm.metric} {alarm.comparison} {alarm.threshold:g}"
    if alarm.missing != "breaching":
        return over
    # A figure that cannot be had, since the database does not answer, is NaN, which is no more than anything.
    return f"{over} or {alarm.metric} != {alarm.metric} or absent({alarm.metric})"


def _rule(alarm: AlarmDecl) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "alert": alarm.name,
        "expr": _expression(alarm),
        "annotations": {"description": runbook(alarm)},
    }
    if alarm.periods > 1:
        rule["for"] = f"{alarm.period * alarm.periods}s"
    return rule
