"""`postroad outbox init|status|failed|keys|why|prune|audit|alarms|iam|grants`: what an outbox holds and needs."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.databases import Dsn, Limit, Schema, Table, document, lines, listed, opened
from postroad.cli.output import ANSWER_IS_NO, write
from postroad.cli.parameters import duration, spoken
from postroad.errors import InvalidInput
from postroad.telemetry import legible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.outbox import OutboxStatus


_UNKNOWN = "unknown"
_WEEK = timedelta(days=7)
_LAST_SEQ = 2**63 - 1


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad outbox`."""
    add_verb(app, "init", init, example="postroad outbox init --dsn postgresql://app@db/app")
    add_verb(app, "status", status, example="postroad outbox status --format prometheus")
    add_verb(app, "failed", failed, example="postroad outbox failed --groups")
    add_verb(app, "keys", keys, example="postroad outbox keys")
    add_verb(app, "why", why, example="postroad outbox why 0190b5b8-0000-7000-8000-000000000001")
    add_verb(app, "prune", prune, example="postroad outbox prune --older-than 7d")
    add_verb(app, "audit", audit, example="postroad outbox audit")
    add_verb(app, "alarms", alarms, example="postroad outbox alarms --format prometheus")
    add_verb(app, "iam", iam, example="postroad outbox iam --role producer --topic-arn arn:aws:sns:…:events.fifo")
    add_verb(app, "grants", grants, example="postroad outbox grants --role dispatcher --to dispatcher")


def init(
    call: Call,
    print_sql: Annotated[bool, typer.Option("--print-sql", help="Print the SQL and change nothing.")] = False,
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Make or migrate the tables of the outbox."""
    with opened(dsn, table, schema, ready=False) as outbox:
        if print_sql:
            sql = outbox.init_sql()
            call.show({"sql": sql}, sql)
            return
        version = outbox.init()
    call.show({"version": version}, f"the outbox has version {version}")


def status(
    call: Call,
    format: Annotated[
        Literal["table", "json", "prometheus"], typer.Option(metavar="FORMAT", help="table, json or prometheus.")
    ] = "table",
    service: Annotated[str, typer.Option(metavar="S", help="prometheus: the label service.")] = "default",
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Count what the outbox holds, and say how old it is and what is wrong."""
    with opened(dsn, table, schema) as outbox:
        found = outbox.status()
    if format == "prometheus":
        write("\n".join(_gauges(found, service)))
        return
    shown = Call(url=call.url, config=call.config, json=call.json or format == "json", no_color=call.no_color)
    shown.show(asdict(found), *_told(found))


def failed(
    call: Call,
    groups: Annotated[bool, typer.Option("--groups", help="Count them by type and kind of error.")] = False,
    limit: Limit = 50,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Go on behind this cursor.")] = None,
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """List events that were given up, with the last error of each."""
    with opened(dsn, table, schema) as outbox:
        if groups:
            found = outbox.failed_groups()
            cells = ((each.group, each.event_type, each.count, each.error) for each in found)
            call.show(listed(found), *lines(["GROUP", "TYPE", ">ROWS", "ERROR"], cells, "no failed rows"))
            return
        rows = outbox.failed(limit=limit + 1, after=None if after is None else _position(after))
    more = str(rows[limit - 1].seq) if len(rows) > limit else None
    shown = rows[:limit]
    table_rows = ((row.event_id, row.event_type, row.lane, row.attempts, row.last_error) for row in shown)
    call.show(listed(shown, more), *lines(["EVENT", "TYPE", "KEY", ">ATTEMPTS", "ERROR"], table_rows, "no failed rows"))


def keys(call: Call, limit: Limit = 50, dsn: Dsn = None, table: Table = "outbox", schema: Schema = "public") -> None:
    """List keys that are held back: their first event, why it is not published, and how many wait behind it."""
    with opened(dsn, table, schema) as outbox:
        found = outbox.keys(limit=limit)
    cells = ((key.tenant_id, key.lane, key.head, key.state, key.waiting, key.reason) for key in found)
    headings = ["TENANT", "KEY", "HEAD", "STATE", ">WAITING", "WHY"]
    call.show(listed(found), *lines(headings, cells, "no key is held back"))


def why(
    call: Call,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event.")],
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Say in one sentence what the event waits for; exit 1 when it is not known."""
    with opened(dsn, table, schema) as outbox:
        row = outbox.get(event_id)
        answer = _UNKNOWN if row is None else outbox.why(event_id)
    call.show({"event_id": event_id, "why": answer}, legible(answer))
    if row is None:
        raise typer.Exit(ANSWER_IS_NO)


def prune(
    call: Call,
    older_than: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Sent or skipped longer ago (7d).")
    ] = None,
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Delete events that were sent or skipped long ago, and no others."""
    with opened(dsn, table, schema) as outbox:
        pruned = outbox.prune(older_than=_WEEK if older_than is None else timedelta(seconds=older_than))
    call.show({"pruned": pruned}, f"pruned {pruned:,}")


def audit(call: Call, limit: Limit = 100, dsn: Dsn = None, table: Table = "outbox", schema: Schema = "public") -> None:
    """List what was redriven and skipped by hand, the newest first."""
    with opened(dsn, table, schema) as outbox:
        entries = outbox.audit(limit=limit)
    cells = (
        (document(each)["at"], each.actor, each.action, each.event_id, f"{each.before} > {each.after}", each.reason)
        for each in entries
    )
    call.show(
        listed(entries), *lines(["AT", "WHO", "ACTION", "EVENT", "STATE", "WHY"], cells, "nothing was done by hand")
    )


def _position(cursor: str) -> int:
    if not cursor.isdecimal():
        raise InvalidInput(f"after: {cursor!r} is no cursor", field="after", remedy="Give the next_cursor of a list.")
    return min(int(cursor), _LAST_SEQ)


def _gauges(found: OutboxStatus, service: str) -> Iterator[str]:
    label = service.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    figures = {
        "event_outbox_backlog": (f'service="{label}"', found.pending),
        "event_publish_lag_seconds": (f'service="{label}"', found.oldest_pending_seconds),
        "dead_letter_count": (f'service="{label}",queue=""', found.failed),
    }
    for name, (labels, value) in figures.items():
        yield f"# TYPE {name} gauge"
        yield f"{name}{{{labels}}} {float(value)}"


def _told(found: OutboxStatus) -> list[str]:
    counts = "  ".join(
        f"{getattr(found, name):,} {name}" for name in ("pending", "sent", "failed", "parked", "skipped")
    )
    told = [counts, f"oldest pending {spoken(found.oldest_pending_seconds)}, {found.blocked_keys:,} keys held back"]
    if found.oldest_open_transaction_seconds:
        told.append(f"a transaction has added events for {spoken(found.oldest_open_transaction_seconds)} and not ended")
    if found.target_error is not None:
        told.append(legible(f"the target is not available: {found.target_error}"))
    return told


def alarms(
    call: Call,
    format: Annotated[
        Literal["prometheus", "cloudformation"], typer.Option(metavar="FORMAT", help="prometheus or cloudformation.")
    ] = "prometheus",
) -> None:
    """Print the four alarms on backlog, lags and dead letters, each with its runbook."""
    from postroad.topology import alarm_rules, render_cloudformation, transfers_topology

    topology = transfers_topology()
    if format == "prometheus":
        document = alarm_rules(topology)
    else:
        template = render_cloudformation(topology)
        named = {
            name: resource
            for name, resource in template["Resources"].items()
            if resource["Type"] == "AWS::CloudWatch::Alarm"
        }
        document = {"AWSTemplateFormatVersion": "2010-09-09", "Resources": named}
    call.show(document, json.dumps(document, indent=2))


def iam(
    call: Call,
    role: Annotated[Literal["producer", "consumer"], typer.Option(metavar="ROLE", help="producer or consumer.")],
    topic_arn: Annotated[str | None, typer.Option(metavar="A", help="producer: the topic.")] = None,
    queue_arn: Annotated[str | None, typer.Option(metavar="A", help="consumer: its queue.")] = None,
    kms_key: Annotated[str | None, typer.Option(metavar="A", help="consumer: the queue's KMS key.")] = None,
) -> None:
    """Print the least IAM policy of a producer or a consumer."""
    document = _policy(role, topic_arn, queue_arn, kms_key)
    call.show(document, json.dumps(document, indent=2))


def grants(
    call: Call,
    role: Annotated[
        Literal["producer", "dispatcher", "operator"],
        typer.Option(metavar="ROLE", help="producer, dispatcher or operator."),
    ],
    to: Annotated[str, typer.Option(metavar="NAME", help="The database role that gets the rights.")],
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Print the SQL that gives a role of PostgreSQL the rights it needs."""
    from postroad.outbox import Outbox

    sql = Outbox.postgres(table=table, schema=schema).grants(role, to=to)
    call.show({"sql": sql}, sql)


def _policy(role: str, topic_arn: str | None, queue_arn: str | None, kms_key: str | None) -> dict[str, Any]:
    from postroad.topology import consumer_policy, producer_policy

    field, arn = ("topic_arn", topic_arn) if role == "producer" else ("queue_arn", queue_arn)
    option = "--" + field.replace("_", "-")
    service = "sns" if role == "producer" else "sqs"
    if arn is None or not arn.startswith("arn:") or f":{service}:" not in arn or "*" in arn:
        raise InvalidInput(
            f"{field}: a {role} needs the exact ARN of its {'topic' if role == 'producer' else 'queue'}",
            field=field,
            remedy=f"Give {option} arn:aws:{service}:REGION:ACCOUNT:NAME.",
        )
    return producer_policy(arn) if role == "producer" else consumer_policy(arn, kms_key=kms_key)
