"""`postroad outbox alarms|iam|grants`: what a deployment of an outbox needs, to be applied elsewhere."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from postroad.cli.call import Call
from postroad.cli.outboxes import Schema, Table
from postroad.cli.verbs import add_verb
from postroad.errors import InvalidInput


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad outbox`."""
    add_verb(app, "alarms", alarms, example="postroad outbox alarms --format prometheus")
    add_verb(app, "iam", iam, example="postroad outbox iam --role producer --topic-arn arn:aws:sns:…:events.fifo")
    add_verb(app, "grants", grants, example="postroad outbox grants --role dispatcher --to dispatcher")


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
            f"{field}: a {role} needs the exact ARN of its {'topic' if role == 'producer' else 'queue'}", field=field,
            remedy=f"Give {option} arn:aws:{service}:REGION:ACCOUNT:NAME.",
        )  # fmt: skip
    return producer_policy(arn) if role == "producer" else consumer_policy(arn, kms_key=kms_key)
