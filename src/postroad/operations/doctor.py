"""The doctor: everything doubtful about a store and the database beside it, each with its remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from postroad.agents.tables import EVENTS_STREAM
from postroad.errors import ConfigurationError, NotPermitted, QueueNotFound
from postroad.operations.audit import AuditLog
from postroad.operations.live_databases import dsn_findings, engine_findings
from postroad.operations.live_files import file_findings
from postroad.operations.live_queues import dead_letter_findings, setting_findings
from postroad.operations.window_algebra import Seconds, seconds, window_findings
from postroad.ports import Store
from postroad.settings import nearest
from postroad.telemetry import Auditor
from postroad.topology.findings import Finding


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
