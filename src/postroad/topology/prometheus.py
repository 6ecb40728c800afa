"""The alarms of a topology as rules of Prometheus."""

from __future__ import annotations

from typing import Any

from postroad.topology.declarations import AlarmDecl
from postroad.topology.linting import check
from postroad.topology.runbooks import runbook
from postroad.topology.topology import Topology

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
