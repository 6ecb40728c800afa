"""Diagnosis: what is doubtful about a store and the database beside it, and what happened to one task or job."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from postroad import connections
from postroad.agents import DEAD_QUEUE, EVENTS_STREAM, REJECTED_QUEUE
from postroad.arguments import Seconds, check
from postroad.engine import FIXED_VERSION
from postroad.errors import ConfigurationError, NotPermitted, QueueNotFound
from postroad.inbox import RETENTION, Windows
from postroad.operations.audit import AuditLog
from postroad.ports import Store
from postroad.queues import QueueOverview, QueueSpec
from postroad.settings import audit_path, data_path, nearest
from postroad.telemetry import Auditor, counted
from postroad.topology import Finding, lint_queues, unencrypted

Specs = Mapping[str, QueueSpec]
Duration = float | timedelta
EXPIRING_SECONDS: Final = 172_800
BLOAT_BYTES: Final = 100_000_000
BLOAT_PART: Final = 0.5
LEAST_FREE_BYTES: Final = 200_000_000
LEAST_FREE_PART: Final = 0.05
MOST_LOG_BYTES: Final = 1_000_000_000
_SOUND: Final = ".".join(map(str, FIXED_VERSION))
_COMPANIONS: Final = ("-wal", "-shm", ".token", ".tokens.json", ".secret", ".blobs", ".metrics")


def doctor(
    backend: Store,
    *,
    handler_p99: Mapping[str, float] | None = None,
    dsn: str | None = None,
    outbox_horizon: Duration | None = None,
    inbox_retention: Duration | None = None,
) -> tuple[Finding, ...]:
    """Examine queues, files and the application's database, and return the findings, errors first. Nothing is changed.

    Args:
        backend: The store to examine.
        handler_p99: Seconds by queue within which 99 of 100 calls of its handler return, as far as they are known.
        dsn: The database of outbox and inbox; by default none is examined.
        outbox_horizon: How long the outbox may publish an event after it was recorded; by default that of `Windows`.
        inbox_retention: How long the inbox remembers an event; by default 30 days, as an inbox does.

    Raises:
        QueueNotFound: `handler_p99` names a queue that does not exist.

    Example:
        for finding in doctor(backend, handler_p99={"orders": 12}):
            print(finding.message, finding.remedy)
    """
    overviews, data = backend.overviews(), data_path(backend.url)
    specs = {overview.spec.name: overview.spec for overview in overviews}
    p99 = _checked(handler_p99 or {}, specs)
    findings = [
        *_setting_findings(overviews, specs, p99),
        *_window_findings(specs, outbox_horizon=outbox_horizon, inbox_retention=inbox_retention),
        *_dead_letter_findings(backend, overviews),
        *_agent_findings(backend),
        *_topic_findings(backend),
        *(() if data is None else file_state_findings(data, connections.engine_file_state(data))),
        *file_findings(backend.url, backend.clock.now()),
        *_audit_findings(backend.audit_log()),
        *(() if dsn is None else _database_findings(dsn)),
    ]
    return tuple(sorted(findings, key=lambda finding: finding.severity != "error"))


def _checked(handler_p99: Mapping[str, float], names: Collection[str]) -> Mapping[str, float]:
    for name in handler_p99:
        if name not in names:
            raise QueueNotFound(
                f'handler_p99: queue "{name}" does not exist', field="handler_p99", nearest=nearest(name, names)
            )
    return {name: _seconds("handler_p99", value) for name, value in handler_p99.items()}


def _seconds(name: str, given: Duration) -> float:
    value = given.total_seconds() if isinstance(given, timedelta) else given
    check(value, Seconds, name)
    return float(value)


def _setting_findings(
    overviews: Sequence[QueueOverview], specs: Specs, handler_p99: Mapping[str, float]
) -> Iterator[Finding]:
    yield from lint_queues(specs, handler_p99=handler_p99, ends=(DEAD_QUEUE, REJECTED_QUEUE))
    for name, spec in specs.items():
        if spec.dead_letter is not None and spec.dead_letter not in specs:
            meant = nearest(spec.dead_letter, specs)
            make = f"Make it with `postroad queue create {spec.dead_letter}`."
            message = f"{name}: its dead-letter queue {spec.dead_letter!r} does not exist"
            remedy = f"Did you mean {meant!r}?" if meant else make
            yield Finding("unknown-reference", "error", name, message, remedy)
    yield from (unencrypted(overview.spec.name) for overview in overviews if overview.in_clear)


def _dead_letter_findings(store: Store, overviews: Sequence[QueueOverview]) -> Iterator[Finding]:
    targets = {overview.spec.dead_letter for overview in overviews} | {DEAD_QUEUE, REJECTED_QUEUE}
    for overview in overviews:
        if overview.spec.name in targets:
            with suppress(QueueNotFound):
                yield from _waiting(store, overview)


def _waiting(store: Store, overview: QueueOverview) -> Iterator[Finding]:
    spec, stats = overview.spec, overview.stats
    held = stats.visible + stats.in_flight + stats.delayed
    if not held:
        return
    message = f"{spec.name}: {counted(held, 'dead letter')} {'wait' if held > 1 else 'waits'} for somebody to look"
    remedy = f"See why with `postroad queue groups {spec.name}`, then redrive or purge."
    yield Finding("dlq-not-empty", "warning", spec.name, message, remedy)
    age = stats.oldest_age_seconds
    if age is None and spec.dead_letter is None:
        # SQS does not know the age of the oldest message: peek at a few.
        now = store.clock.now()
        age = max(((now - each.sent_at).total_seconds() for each in store.queue(spec.name).peek()), default=None)
    left = None if age is None else spec.retention - age
    if left is not None and left < EXPIRING_SECONDS:
        message = f"{spec.name}: the oldest dead letter is lost in {max(0.0, left) / 3600:.1f} hours"
        remedy = f"Redrive with `postroad queue redrive {spec.name}`, or raise its retention (1209600 s at the most)."
        yield Finding("dlq-expiring", "error", spec.name, message, remedy)


def _window_findings(
    specs: Specs, *, outbox_horizon: Duration | None, inbox_retention: Duration | None
) -> Iterator[Finding]:
    """Yield the queues in which a copy of an event may arrive after the inbox has forgotten it."""
    horizon = Windows().outbox_horizon if outbox_horizon is None else _seconds("outbox_horizon", outbox_horizon)
    kept = _seconds("inbox_retention", RETENTION if inbox_retention is None else inbox_retention)
    dead_letter_queues = {spec.dead_letter for spec in specs.values()}
    for name, spec in specs.items():
        dead = specs.get(spec.dead_letter or "")
        required = Windows(
            queue_retention=spec.retention,
            dead_letter_retention=0 if dead is None else dead.retention,
            outbox_horizon=horizon,
        ).required
        if name not in dead_letter_queues and kept < required:
            message = f"an inbox remembers for {kept:.0f} s, but copies of an event may arrive for {required:.0f} s"
            kept_less = "let the queue and its dead letters keep less"
            remedy = f"Give the inbox a retention of {required:.0f} s or more, or {kept_less}."
            yield Finding("inbox-window", "error", name, f"{name}: {message}", remedy)


def _agent_findings(backend: Store) -> Iterator[Finding]:
    try:
        backend.check_agents()
    except ConfigurationError as error:
        yield Finding("agents-stuck", "error", EVENTS_STREAM, error.message, error.remedy)


def _topic_findings(backend: Store) -> Iterator[Finding]:
    with suppress(NotPermitted):
        for name in backend.topics_without_subscriptions():
            # Alarms are for people, who may be subscribed in another account.
            if not name.endswith("-alerts"):
                message = f"{name}: nobody is subscribed to this topic, so what is published there reaches nobody"
                remedy = "Subscribe a queue to it, or publish to another topic if the name is a mistake."
                yield Finding("topic-unheard", "warning", name, message, remedy)


def _audit_findings(log: Auditor | None) -> Iterator[Finding]:
    if isinstance(log, AuditLog) and not (found := log.verify()).ok:
        message = f"{log.path}: line {found.bad_line} was changed, removed or swapped"
        remedy = "Compare it with a copy; after a line that a crash tore, the next record is 'recovered'."
        yield Finding("audit-chain", "error", str(log.path), message, remedy)


def file_state_findings(path: Path, state: connections.FileState) -> Iterator[Finding]:
    """Yield what is wrong with the file of the embedded engine and with the SQLite that opens it."""
    if not state.sound:
        message = f"{path}: SQLite {state.library} can damage its log when two processes checkpoint in a row"
        yield Finding("sqlite-version", "error", str(path), message, f"pip install -U apsw, to {_SOUND} or newer.")
    if state.journal_mode != "wal":
        message = f"{path}: keeps its log in mode {state.journal_mode!r}, so that readers and writers stop each other"
        remedy = "Close every program that has it open; Postroad turns to a write-ahead log when it opens the file."
        yield Finding("sqlite-sync", "error", str(path), message, remedy)
    if state.free >= BLOAT_BYTES and state.free >= BLOAT_PART * state.size:
        message = f"{path}: {state.free / 1e6:,.0f} of its {state.size / 1e6:,.0f} MB hold nothing"
        remedy = "Run `postroad compact`; other programs may go on using the file."
        yield Finding("file-bloat", "warning", str(path), message, remedy)


def _database_findings(dsn: str) -> Iterator[Finding]:
    if connections.dialect_of(dsn) == "sqlite":
        path = Path(connections.path_of(dsn))
        state = connections.application_file_state(path)
        if not state.sound and state.journal_mode == "wal":
            message = f"Python's SQLite {state.library} can damage its log when two processes checkpoint in a row"
            remedy = f"Run a Python with SQLite {_SOUND} or newer, or set PRAGMA journal_mode=DELETE."
            yield Finding("sqlite-version", "warning", str(path), f"{path}: {message}", remedy)
        return
    database = connections.postgres_database(dsn, schema_remedy="Run `postroad outbox init`.")
    if connections.shares_servers(database):
        yield Finding(
            "pooler",
            "warning",
            "dsn",
            "dsn: successive transactions run in different processes of the server: "
            "LISTEN and session-wide advisory locks do not work there",
            "Name the server itself, or a pool in session mode; the outbox polls until then.",
        )


def file_findings(url: str, now: datetime) -> Iterator[Finding]:
    """Yield what is doubtful about the clock, the files of the backend and the disk they are on."""
    if now < datetime(2020, 1, 1, tzinfo=UTC):
        yield _clock("clock", f"the clock says {now.isoformat()}")
    data = data_path(url)
    if data is None:
        return
    for path in (data, *(data.with_name(data.name + suffix) for suffix in _COMPANIONS), audit_path(url)):
        if path.exists():
            mode = path.stat().st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                wanted = "700" if path.is_dir() else "600"
                message = f"{path}: others than its owner may use it (mode {stat.S_IMODE(mode):o})"
                yield Finding("file-mode", "error", str(path), message, f"chmod {wanted} {path}.")
            latest = connections.engine_file_state(path).latest if path == data else None
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            written = written if latest is None else max(written, latest)
            # The clocks of a machine and its disks may differ a little although nobody has set one back.
            if written > now + timedelta(minutes=1):
                message = f"{path}: was written at {written.isoformat()}, and the clock says {now.isoformat()}"
                yield _clock(str(path), message)
    log = data.with_name(f"{data.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > MOST_LOG_BYTES:
        message = f"{log}: the log has {size / 1e9:.1f} GB; a program that reads for long keeps it growing"
        yield Finding("wal-size", "warning", str(log), message, "End the program that has the file open for reading.")
    space = shutil.disk_usage(data.absolute().parent)
    if space.free < LEAST_FREE_BYTES or space.free < LEAST_FREE_PART * space.total:
        message = f"{data}: {space.free / 1e6:,.0f} MB are free on its disk, {space.free / space.total:.1%} of it"
        yield Finding("disk-space", "warning", str(data), message, "Make room: sends fail when the disk is full.")


def _clock(target: str, message: str) -> Finding:
    return Finding("clock", "error", target, message, "Set the clock of the machine; stored times do not change.")
