"""Settings that no store accepts, found before anything is made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from postroad.errors import TopologyError
from postroad.topology.declarations import (
    DEFAULT_BUS,
    AlarmDecl,
    BucketDecl,
    FunctionDecl,
    Resource,
    RuleDecl,
    StreamDecl,
    TableDecl,
)
from postroad.topology.references import NEEDS
from postroad.topology.topology import Topology

Problem = tuple[str, str]
"""The setting, and what is wrong with it."""

_WHOLE = {
    StreamDecl: {"shards": (1, 1_000), "retention_hours": (1, 8_760)},
    RuleDecl: {"max_attempts": (0, 185), "max_event_age": (60, 86_400)},
    FunctionDecl: {"timeout": (1, 900), "memory": (128, 10_240)},
    AlarmDecl: {"period": (10, 86_400), "periods": (1, 100)},
}


def check_values(topology: Topology) -> None:
    """Raise `TopologyError` naming the first setting that no store accepts."""
    for resource in topology.resources:
        for field, why in _problems(resource):
            raise TopologyError(f"{resource.kind} {resource.name!r}: {field}: {why}", field=field)
    for component in topology.components:
        for need in (*NEEDS, "creates"):
            if isinstance(getattr(component, need), str):
                message = f"component {component.name!r}: {need}: is one text, not a list of names"
                raise TopologyError(message, field=need)


def _problems(resource: Resource) -> Iterator[Problem]:
    for field, (low, high) in _WHOLE.get(type(resource), {}).items():
        value = getattr(resource, field)
        if not _is_whole(value) or not low <= value <= high:
            yield field, f"{value!r} is not a whole number from {low:,} to {high:,}"
    if isinstance(resource, RuleDecl):
        yield from _of_rule(resource)
    elif isinstance(resource, TableDecl):
        yield from _of_table(resource)
    elif isinstance(resource, AlarmDecl) and not _is_number(resource.threshold):
        yield "threshold", f"{resource.threshold!r} is not a number"
    elif isinstance(resource, BucketDecl) and resource.expire_days is not None:
        if not _is_whole(resource.expire_days) or resource.expire_days < 1:
            yield "expire_days", f"{resource.expire_days!r} is not a whole number of 1 or more"
    elif isinstance(resource, FunctionDecl):
        for trigger in resource.triggers:
            if not _is_whole(trigger.batch_size) or not 1 <= trigger.batch_size <= 10_000:
                yield "batch_size", f"{trigger.batch_size!r} is not a whole number from 1 to 10,000"
            if not _is_whole(trigger.max_attempts) or not -1 <= trigger.max_attempts <= 10_000:
                yield "max_attempts", f"{trigger.max_attempts!r} is not a whole number from -1 to 10,000"


def _of_rule(rule: RuleDecl) -> Iterator[Problem]:
    if bool(rule.pattern) is bool(rule.schedule):
        yield "pattern", "a rule has either a pattern or a schedule"
    elif rule.schedule and rule.bus != DEFAULT_BUS:
        yield "schedule", f"schedules run on the bus {DEFAULT_BUS!r} only, not on {rule.bus!r}"


def _of_table(table: TableDecl) -> Iterator[Problem]:
    keyed = [(table.hash_key, table.range_key), *((index.hash_key, index.range_key) for index in table.indexes)]
    for hash_key, range_key in keyed:
        if not hash_key or range_key == "":
            yield "hash_key" if not hash_key else "range_key", "is empty"
        elif hash_key == range_key:
            yield "range_key", f"{range_key!r} is the hash key already"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
