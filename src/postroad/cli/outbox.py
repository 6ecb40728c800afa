"""`postroad outbox`: what an outbox holds and needs, and repairs of events that failed or went to the wrong topic."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from postroad.cli.audit import audited
from postroad.cli.call import Call, verb
from postroad.cli.display import more, table
from postroad.cli.output import write
from postroad.cli.packages import outbox, topology, up_dispatcher, views
from postroad.cli.parameters import (
    By,
    Cursor,
    Limit,
    OutboxOptions,
    Reason,
    Schema,
    argument,
    duration_option,
    flag,
    option,
    require,
    short_duration,
    time_option,
)
from postroad.errors import InvalidInput
from postroad.signals import stopped_by_signals
from postroad.telemetry import counted, legible

EventId = Annotated[str, argument("EVENT_ID", "The event.")]
Key = Annotated[str | None, option("K", "Only this key.")]
EventType = Annotated[str | None, option("T", "Only this event type.", "--type")]
_LAST_SEQ = 2**63 - 1


@verb("outbox init", "--dsn postgresql://app@db/app")
def init(
    call: Call,
    at: OutboxOptions,
    print_sql: Annotated[bool, flag("--print-sql", "Print the SQL and change nothing.")] = False,
) -> None:
    """Create or migrate the tables of the outbox."""
    with at.open(call, ready=False) as outbox:
        if print_sql:
            sql = outbox.init_sql()
            call.show({"sql": sql}, sql)
            return
        version = outbox.init()
    call.show({"version": version}, f"the outbox has version {version}")


@verb("outbox status", "--format prometheus")
def status(
    call: Call,
    at: OutboxOptions,
    format: Annotated[Literal["table", "json", "prometheus"], option("FORMAT", "How to print it.")] = "table",
    service: Annotated[str | None, option("S", "The label `service` of the format prometheus.")] = None,
) -> None:
    """Count the events of the outbox, and show how old they are and what is wrong."""
    with at.open(call) as outbox:
        found = outbox.status()
    if format == "prometheus":
        write("\n".join(_gauges(found, service or call.settings().outbox_service)))
        return
    counts = ("pending", "sent", "failed", "parked", "skipped")
    held_back = counted(found.blocked_keys, "key")
    lines = [
        "  ".join(f"{getattr(found, name):,} {name}" for name in counts),
        f"oldest pending {short_duration(found.oldest_pending_seconds)}, {held_back} held back",
    ]
    if found.oldest_open_transaction_seconds:
        age = short_duration(found.oldest_open_transaction_seconds)
        lines.append(f"a transaction that added events has been open for {age}")
    if found.target_error is not None:
        lines.append(legible(f"the target is not available: {found.target_error}"))
    replace(call, json=call.json or format == "json").show(found, *lines)


def _gauges(found: outbox.OutboxStatus, service: str) -> Iterator[str]:
    label = service.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    figures = {
        "event_outbox_backlog": (f'service="{label}"', found.pending),
        "event_publish_lag_seconds": (f'service="{label}"', found.oldest_pending_seconds),
        "dead_letter_count": (f'service="{label}",queue=""', found.failed),
    }
    for name, (labels, value) in figures.items():
        yield f"# TYPE {name} gauge"
        yield f"{name}{{{labels}}} {float(value)}"


@verb("outbox failed", "--groups")
def failed(
    call: Call,
    at: OutboxOptions,
    groups: Annotated[bool, flag("--groups", "Count them by type and kind of error.")] = False,
    limit: Limit = 50,
    after: Cursor = None,
) -> None:
    """List failed events, with the last error of each."""
    if after is not None and re.fullmatch(r"[0-9]{1,19}", after) is None:
        raise InvalidInput(f"after: {after!r} is not a cursor", field="after", remedy="Give the next_cursor of a list.")
    nothing = "no failed rows"
    with at.open(call) as outbox:
        if groups:
            found = outbox.failed_groups()
            cells: Iterator[list[Any]] = ([each.group, each.event_type, each.count, each.error] for each in found)
            call.show({"items": found, "next_cursor": None}, table(["GROUP", "TYPE", ">ROWS", "ERROR"], cells, nothing))
            return
        rows = outbox.failed(limit=limit + 1, after=None if after is None else min(int(after), _LAST_SEQ))
    cursor = str(rows[limit - 1].seq) if len(rows) > limit else None
    shown = rows[:limit]
    cells = ([row.event_id, row.event_type, row.lane, row.attempts, row.last_error] for row in shown)
    headings = ["EVENT", "TYPE", "KEY", ">ATTEMPTS", "ERROR"]
    call.show({"items": shown, "next_cursor": cursor}, table(headings, cells, nothing), *more(cursor, "--after"))


@verb("outbox keys", "--dsn sqlite:///app.db")
def keys(call: Call, at: OutboxOptions, limit: Limit = 50) -> None:
    """List keys that are held back: the first event, why it is not published, and how many wait behind it."""
    with at.open(call) as outbox:
        found = outbox.keys(limit=limit)
    cells = ([key.tenant_id, key.lane, key.head, key.state, key.waiting, key.reason] for key in found)
    headings = ["TENANT", "KEY", "HEAD", "STATE", ">WAITING", "WHY"]
    call.show({"items": found, "next_cursor": None}, table(headings, cells, "no key is held back"))


@verb("outbox why", "0190b5b8-0000-7000-8000-000000000001")
def why(call: Call, event_id: EventId, at: OutboxOptions) -> None:
    """Explain in one sentence what the event waits for; exit 1 if the event is unknown."""
    with at.open(call) as outbox:
        row = outbox.get(event_id)
        answer = "unknown" if row is None else outbox.why(event_id)
    call.show({"event_id": event_id, "why": answer}, legible(answer), ok=row is not None)


@verb("outbox prune", "--older-than 7d")
def prune(
    call: Call,
    at: OutboxOptions,
    older_than: Annotated[float | None, duration_option("Delete events older than this (7d).")] = None,
) -> None:
    """Delete events that were sent or skipped long ago."""
    with at.open(call) as outbox, call.working("pruning the outbox"):
        pruned = outbox.prune(older_than=timedelta(days=7) if older_than is None else timedelta(seconds=older_than))
    call.show({"pruned": pruned}, f"pruned {counted(pruned, 'event')}")


@verb("outbox audit", "--limit 20 --dsn sqlite:///app.db")
def audit(call: Call, at: OutboxOptions, limit: Limit = 100) -> None:
    """List what was redriven and skipped by hand, newest first."""
    with at.open(call) as outbox:
        entries = outbox.audit(limit=limit)
    cells = (
        [e.at.isoformat().replace("+00:00", "Z"), e.actor, e.action, e.event_id, f"{e.before} > {e.after}", e.reason]
        for e in entries
    )
    headings = ["AT", "WHO", "ACTION", "EVENT", "STATE", "WHY"]
    call.show({"items": entries, "next_cursor": None}, table(headings, cells, "nothing was done by hand"))


@verb("outbox alarms", "--format prometheus")
def alarms(
    call: Call,
    format: Annotated[
        Literal["prometheus", "cloudformation"], option("FORMAT", "What to print it for.")
    ] = "prometheus",
) -> None:
    """Print the four alarms on backlog, lags and dead letters, each with its runbook."""
    if format == "prometheus":
        document = topology.alarm_rules(topology.transfers_topology())
    else:
        resources = topology.render_cloudformation(topology.transfers_topology())["Resources"]
        named = {name: each for name, each in resources.items() if each["Type"] == "AWS::CloudWatch::Alarm"}
        document = {"AWSTemplateFormatVersion": "2010-09-09", "Resources": named}
    call.show(document, json.dumps(document, indent=2))


@verb("outbox iam", "--role producer --topic-arn arn:aws:sns:eu-west-1:123456789012:shop.fifo")
def iam(
    call: Call,
    role: Annotated[Literal["producer", "consumer"], option("ROLE", "Whom the policy is for.")],
    topic_arn: Annotated[str | None, option("A", "The topic of a producer.")] = None,
    queue_arn: Annotated[str | None, option("A", "The queue of a consumer.")] = None,
    kms_key: Annotated[str | None, option("A", "The KMS key of a consumer's queue.")] = None,
) -> None:
    """Print the smallest IAM policy for a producer or a consumer."""
    what, service, arn = ("topic", "sns", topic_arn) if role == "producer" else ("queue", "sqs", queue_arn)
    if arn is None or not arn.startswith("arn:") or f":{service}:" not in arn or "*" in arn:
        raise InvalidInput(
            f"{what}_arn: a {role} needs the exact ARN of its {what}",
            field=f"{what}_arn",
            remedy=f"Give --{what}-arn arn:aws:{service}:REGION:ACCOUNT:NAME.",
        )
    document = topology.producer_policy(arn) if role == "producer" else topology.consumer_policy(arn, kms_key=kms_key)
    call.show(document, json.dumps(document, indent=2))


@verb("outbox grants", "--role dispatcher --to dispatcher")
def grants(
    call: Call,
    role: Annotated[Literal["producer", "dispatcher", "operator"], option("ROLE", "Whom the rights are for.")],
    to: Annotated[str, option("NAME", "The database role that gets the rights.")],
    table: Annotated[str, option("NAME", "The table of the outbox.")] = "outbox",
    schema: Schema = "public",
) -> None:
    """Print the SQL that gives a PostgreSQL role the rights it needs."""
    sql = outbox.Outbox.postgres(table=table, schema=schema).grants(role, to=to)
    call.show({"sql": sql}, sql)


@verb("outbox redrive", '--type transfers.submitted --by kim --reason "topic is back"')
def redrive(
    call: Call,
    at: OutboxOptions,
    event_ids: Annotated[list[str] | None, argument("EVENT_ID", "The events; or use the options.")] = None,
    key: Key = None,
    tenant: Annotated[str | None, option("T", "Only this tenant.")] = None,
    type_: EventType = None,
    group: Annotated[str | None, option("G", "Only this failure group.")] = None,
    by: By = "",
    reason: Reason = "",
    limit: Annotated[int | None, option("N", "At most this many.", min=1)] = None,
    canary: Annotated[int | None, option("N", "This many first; stop if one fails in the same way.", min=1)] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Show what would be redriven, change nothing.")] = False,
) -> None:
    """Publish failed or parked events again, with their ids and in their order; exit 1 if none matches."""
    require(by=by, reason=reason)
    if not (event_ids or key or tenant or type_ or group):
        raise InvalidInput(
            "redrive: nothing says which events",
            field="event_ids",
            remedy="Name event ids, --key, --tenant, --type or --group; nothing was changed.",
        )
    selection: dict[str, Any] = {"key": key, "tenant_id": tenant, "type": type_, "group": group, "limit": limit}
    with at.open(call) as outbox:
        if dry_run:
            found = outbox.redrive(event_ids or (), by=by, reason=reason, dry_run=True, **selection)
        else:
            detail = {"events": event_ids or [], **selection}
            waits = (
                f"waiting at most 60s until the canary of {counted(canary, 'event')} is sent" if canary else "redriving"
            )
            with audited(call, "outbox.redrive", at.table, by, reason, detail) as done, call.working(waits):
                found = outbox.redrive(event_ids or (), by=by, reason=reason, canary=canary, **selection)
                done["redriven"] = len(found)
    ids = [str(event_id) for event_id in found]
    summary = f"{'would redrive' if dry_run else 'redrove'} {counted(len(ids), 'event')}"
    if not ids:
        summary = "nothing to redrive: no failed or parked event matches"
    call.show(views.OutboxRedriven(ids, dry_run), summary, *map(legible, ids), ok=bool(ids))


@verb("outbox replay", '--since 2026-01-31T08:00:00Z --to events.fifo --by kim --reason "wrong topic"')
def replay(
    call: Call,
    at: OutboxOptions,
    to: Annotated[str, option("NAME_OR_ARN", "The topic to publish them to.")],
    since: Annotated[datetime | None, time_option("Sent at this time or later.")] = None,
    until: Annotated[datetime | None, time_option("Sent before this time.")] = None,
    type_: EventType = None,
    key: Key = None,
    by: By = "",
    reason: Reason = "",
    dry_run: Annotated[bool, flag("--dry-run", "Count them, publish nothing.")] = False,
    keyfile: Annotated[Path | None, option("F", "Keys of encrypted payloads.")] = None,
) -> None:
    """Publish sent events once more, with their ids and in their order; exit 1 if none matches or one fails."""
    require(by=by, reason=reason)
    if not (since or until or type_ or key):
        raise InvalidInput(
            "replay: nothing says which events",
            field="since",
            remedy="Give --since, --until, --type or --key; nothing was published.",
        )
    settings = call.settings(logs=True)
    times = {name: time and time.isoformat() for name, time in (("since", since), ("until", until))}
    detail = {"to": to, "type": type_, "key": key, **times}
    chosen: dict[str, Any] = {"since": since, "until": until, "type": type_, "key": key, "by": by, "reason": reason}
    with at.open(call, keyfile=keyfile) as outbox, up_dispatcher.open_topic(to, settings) as topic:
        if dry_run:
            report = outbox.replay(topic, dry_run=True, **chosen)
        else:
            with (
                stopped_by_signals() as stop,
                audited(call, "outbox.replay", at.table, by, reason, detail) as done,
                call.working("replaying", lambda replayed: f"{replayed:,} replayed", step=1_000) as tell,
            ):

                def progress(replayed: int) -> None:
                    # The count is for the audit. A signal ends the replay between two pages.
                    tell(replayed)
                    done["replayed"] = replayed
                    if stop.is_set():
                        raise KeyboardInterrupt

                report = outbox.replay(topic, progress=progress, **chosen)
                done.update(asdict(report))
    summary = f"would replay {report.selected:,}" if dry_run else f"replayed {report.replayed:,} of {report.selected:,}"
    lines = [f"{summary} to {legible(to)}"]
    if report.failed:
        lines.append(f"{report.failed:,} failed, {report.held:,} behind them held: {legible(report.last_error or '')}")
    document = {**asdict(report), "dry_run": dry_run}
    call.show(document, *lines, ok=bool(report.selected) and not report.failed)


@verb("outbox skip", 'EVENT_ID --by kim --reason "refunded by hand"')
def skip(call: Call, event_id: EventId, at: OutboxOptions, by: By = "", reason: Reason = "") -> None:
    """Give up a failed or parked event: its key continues, and the next message of the key names the gap."""
    require(by=by, reason=reason)
    with at.open(call) as outbox, audited(call, "outbox.skip", at.table, by, reason, {"event": event_id}):
        outbox.skip(event_id, by=by, reason=reason)
    call.show(views.OutboxSkipped(event_id), legible(f"skipped {event_id}"))
