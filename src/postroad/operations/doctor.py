"""The doctor: everything doubtful about a store and the database beside it, each with its remedy."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from postroad.agents import DEAD_QUEUE, EVENTS_STREAM, REJECTED_QUEUE
from postroad.errors import ConfigurationError, InvalidInput, NotPermitted, QueueNotFound
from postroad.inbox import RETENTION, Windows
from postroad.operations.audit import AuditLog
from postroad.operations.doctor_files import dsn_findings, engine_findings, file_findings
from postroad.ports import Store
from postroad.queues import Queue, QueueOverview, QueueSpec
from postroad.settings import nearest
from postroad.telemetry import Auditor
from postroad.topology import Finding, lint_queues, unencrypted

Specs = Mapping[str, QueueSpec]
EXPIRING_SECONDS: Final = 172_800
_ENDS: Final = (DEAD_QUEUE, REJECTED_QUEUE)


def setting_findings(overviews: Sequence[QueueOverview], handler_p99: Mapping[str, float]) -> Iterator[Finding]:
    """What lint says of declared queues, said of live ones."""
    specs = {overview.spec.name: overview.spec for overview in overviews}
    yield from lint_queues(specs, handler_p99=handler_p99, ends=_ENDS)
    for spec in specs.values():
        if spec.dead_letter is not None and spec.dead_letter not in specs:
            yield _no_dead_letters(spec.name, spec.dead_letter, specs)
    yield from (unencrypted(overview.spec.name) for overview in overviews if overview.in_clear)


def dead_letter_findings(store: Store, overviews: Sequence[QueueOverview]) -> Iterator[Finding]:
    """Dead letters that wait for somebody, and those that are about to expire."""
    targets = {overview.spec.dead_letter for overview in overviews} | set(_ENDS)
    for overview in overviews:
        if overview.spec.name in targets:
            with suppress(QueueNotFound):
                yield from _waiting(store, overview)


def _waiting(store: Store, overview: QueueOverview) -> Iterator[Finding]:
    spec, stats = overview.spec, overview.stats
    held = stats.visible + stats.in_flight + stats.delayed
    if not held:
        return
    message = f"{spec.name}: {held:,} dead letter{'s wait' if held > 1 else ' waits'} for somebody to look"
    yield Finding(
        "dlq-not-empty",
        "warning",
        spec.name,
        message,
        f"See why with `postroad queue groups {spec.name}`, then redrive or purge.",
    )
    age = stats.oldest_age_seconds
    if age is None and spec.dead_letter is None:
        age = _sampled_age(store.queue(spec.name), store.clock.now())
    left = None if age is None else spec.retention - age
    if left is not None and left < EXPIRING_SECONDS:
        message = f"{spec.name}: the oldest dead letter is lost in {max(0.0, left) / 3600:.1f} hours"
        remedy = f"Redrive with `postroad queue redrive {spec.name}`, or raise its retention (1209600 s at the most)."
        yield Finding("dlq-expiring", "error", spec.name, message, remedy)


def _sampled_age(queue: Queue, now: datetime) -> float | None:
    """The age of the oldest of a few messages, for stores that do not tell it."""
    return max(((now - message.sent_at).total_seconds() for message in queue.peek()), default=None)


def _no_dead_letters(name: str, dead_letter: str, specs: Specs) -> Finding:
    message = f"{name}: its dead-letter queue {dead_letter!r} does not exist"
    meant = nearest(dead_letter, specs)
    remedy = f"Did you mean {meant!r}?" if meant else f"Make it with `postroad queue create {dead_letter}`."
    return Finding("unknown-reference", "error", name, message, remedy)


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
            queue_retention=spec.retention,
            dead_letter_retention=0 if dead is None else dead.retention,
            outbox_horizon=horizon,
        )
        if kept < windows.required:
            yield _forgetful(spec.name, kept, windows.required)


def _forgetful(name: str, kept: float, required: float) -> Finding:
    return Finding(
        "inbox-window",
        "error",
        name,
        f"{name}: an inbox remembers for {kept:.0f} s, but copies of an event may arrive for {required:.0f} s",
        f"Give the inbox a retention of {required:.0f} s or more, or let the queue and its dead letters keep less.",
    )


def seconds(name: str, given: object) -> float:
    """A time as a number of seconds, or `InvalidInput` naming the argument."""
    value = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        told = "a number of seconds of 0 or more"
        raise InvalidInput(f"{name}: {given!r} is not {told}", field=name, remedy=f"Give {told}.")
    return float(value)


def doctor(
    backend: Store,
    *,
    handler_p99: Mapping[str, float] | None = None,
    dsn: str | None = None,
    outbox_horizon: Seconds | None = None,
    inbox_retention: Seconds | None = None,
) -> tuple[Finding, ...]:
    """Look at the queues and files of the store and at the database of the DSN, change nothing; errors come first."""
    overviews = backend.overviews()
    specs = {overview.spec.name: overview.spec for overview in overviews}
    p99 = _checked(handler_p99 or {}, specs)
    findings = [
        *setting_findings(overviews, p99),
        *window_findings(specs, outbox_horizon=outbox_horizon, inbox_retention=inbox_retention),
        *dead_letter_findings(backend, overviews),
        *_agent_findings(backend),
        *_unheard_topics(backend),
        *engine_findings(backend.url),
        *file_findings(backend.url, backend.clock.now()),
        *_audit_findings(backend.audit_log()),
        *(() if dsn is None else dsn_findings(dsn)),
    ]
    return tuple(sorted(findings, key=lambda finding: finding.severity != "error"))


def _checked(handler_p99: Mapping[str, float], names: Collection[str]) -> Mapping[str, float]:
    for name in handler_p99:
        if name not in names:
            raise QueueNotFound(
                f'handler_p99: queue "{name}" does not exist', field="handler_p99", nearest=nearest(name, names)
            )
    return {name: seconds("handler_p99", value) for name, value in handler_p99.items()}


def _agent_findings(backend: Store) -> Iterator[Finding]:
    try:
        backend.check_agents()
    except ConfigurationError as error:
        yield Finding("agents-stuck", "error", EVENTS_STREAM, error.message, error.remedy)


def _unheard_topics(backend: Store) -> Iterator[Finding]:
    with suppress(NotPermitted):
        unheard = backend.topics_without_subscriptions()
        # What alarms say is for people, who may listen elsewhere.
        for name in (name for name in unheard if not name.endswith("-alerts")):
            message = f"{name}: nobody is subscribed to this topic, so what is published there reaches nobody"
            remedy = "Subscribe a queue to it, or publish to another topic if the name is a mistake."
            yield Finding("topic-unheard", "warning", name, message, remedy)


def _audit_findings(log: Auditor | None) -> Iterator[Finding]:
    if isinstance(log, AuditLog) and not (check := log.verify()).ok:
        message = f"{log.path}: line {check.bad_line} was changed, removed or swapped"
        remedy = "Compare it with a copy; a line torn by a crash is told by the next record, which is 'recovered'."
        yield Finding("audit-chain", "error", str(log.path), message, remedy)
