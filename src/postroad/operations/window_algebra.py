"""Whether an inbox remembers for as long as a copy of an event may still arrive."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import timedelta

from postroad.errors import InvalidInput
from postroad.inbox.inbox import RETENTION, Windows
from postroad.queues import QueueSpec
from postroad.topology.findings import Finding

Seconds = float | timedelta


def window_findings(
    specs: Mapping[str, QueueSpec], *, outbox_horizon: Seconds | None, inbox_retention: Seconds | None
) -> Iterator[Finding]:
    """The queues in which an event may outlive the inbox's memory of it."""
    horizon = Windows().outbox_horizon if outbox_horizon is None else seconds("outbox_horizon", outbox_horizon)
    kept = RETENTION.total_seconds() if inbox_retention is None else seconds("inbox_retention", inbox_retention)
    dead_letter_queues = {spec.dead_letter for spec in specs.values()}
    for spec in specs.values():
        if spec.name in dead_letter_queues:
            continue
        dead = specs.get(spec.dead_letter or "")
        windows = Windows(
            queue_retention=spec.retention, dead_letter_retention=0 if dead is None else dead.retention,
            outbox_horizon=horizon,
        )  # fmt: skip
        if kept < windows.required:
            yield _forgetful(spec.name, kept, windows.required)


def _forgetful(name: str, kept: float, required: float) -> Finding:
    return Finding(
        "inbox-window", "error", name,
        f"{name}: an inbox remembers for {kept:.0f} s, but copies of an event may arrive for {required:.0f} s",
        f"Give the inbox a retention of {required:.0f} s or more, or let the queue and its dead letters keep less.",
    )  # fmt: skip


def seconds(name: str, given: object) -> float:
    """A time as a number of seconds, or `InvalidInput` naming the argument."""
    value = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        told = "a number of seconds of 0 or more"
        raise InvalidInput(f"{name}: {given!r} is not {told}", field=name, remedy=f"Give {told}.")
    return float(value)
