"""Permissions on AWS: the IAM actions of each verb, and the documents that grant them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

Statement = dict[str, Any]
VERSION: Final = "2012-10-17"

SEND: Final = ("sqs:SendMessage",)
FIND: Final = ("sqs:GetQueueUrl",)
OBSERVE: Final = ("sqs:GetQueueAttributes",)
CONSUME: Final = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", *OBSERVE)
"""The actions of a receiver on a queue whose URL it knows."""
MOVE: Final = ("sqs:StartMessageMoveTask", "sqs:CancelMessageMoveTask", "sqs:ListMessageMoveTasks")
CREATE: Final = ("sqs:CreateQueue", "sqs:DeleteQueue", "sqs:SetQueueAttributes", *OBSERVE, *FIND, "sqs:TagQueue")
PUBLISH: Final = ("sns:Publish",)
PUT_EVENTS: Final = ("events:PutEvents",)
PUT_RECORDS: Final = ("kinesis:PutRecord", "kinesis:PutRecords")
READ_STREAM: Final = (
    *("kinesis:DescribeStream", "kinesis:DescribeStreamSummary", "kinesis:GetRecords"),
    *("kinesis:GetShardIterator", "kinesis:ListShards"),
)
LIST_STREAMS: Final = ("kinesis:ListStreams",)
READ_TABLE: Final = ("dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query")
WRITE_TABLE: Final = (
    *("dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"),
    *("dynamodb:BatchWriteItem", "dynamodb:ConditionCheckItem"),
)
READ_TABLE_STREAM: Final = ("dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator")
LIST_TABLE_STREAMS: Final = ("dynamodb:ListStreams",)
READ_OBJECTS: Final = ("s3:GetObject",)
WRITE_OBJECTS: Final = ("s3:PutObject",)
DECRYPT: Final = ("kms:Decrypt",)
ENCRYPT: Final = ("kms:GenerateDataKey", *DECRYPT)
LOG: Final = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")
MEASURE: Final = ("cloudwatch:PutMetricData",)
INVOKE: Final = "lambda:InvokeFunction"
ASSUME: Final = "sts:AssumeRole"


def allowed(actions: Sequence[str], resources: str | list[str], *, sid: str | None = None) -> Statement:
    named = {} if sid is None else {"Sid": sid}
    return {**named, "Effect": "Allow", "Action": list(actions), "Resource": resources}


def document(statements: list[Statement]) -> dict[str, Any]:
    return {"Version": VERSION, "Statement": statements}


def allow_source(policy: str | None, *, service: str, source_arn: str, queue_arn: str) -> str:
    """Return the policy with the statement for this source added; all others stay."""
    parsed = _parsed(policy)
    statement = {
        "Sid": _sid(source_arn),
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": SEND[0],
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": source_arn}},
    }
    if statement in parsed["Statement"]:
        return policy or ""
    parsed["Statement"] = [*_others(parsed, source_arn), statement]
    return json.dumps(parsed)


def disallow_source(policy: str | None, *, source_arn: str) -> str:
    """Return the policy without the statement for this source; empty if nothing is left."""
    parsed = _parsed(policy)
    others = _others(parsed, source_arn)
    if len(others) == len(parsed["Statement"]):
        return policy or ""
    parsed["Statement"] = others
    return json.dumps(parsed) if others else ""


def _parsed(policy: str | None) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(policy) if policy else {"Version": VERSION}
    statements = parsed.get("Statement", [])
    parsed["Statement"] = statements if isinstance(statements, list) else [statements]
    return parsed


def _others(parsed: dict[str, Any], source_arn: str) -> list[dict[str, Any]]:
    return [statement for statement in parsed["Statement"] if statement.get("Sid") != _sid(source_arn)]


def _sid(source_arn: str) -> str:
    return f"postroad{hashlib.sha256(source_arn.encode()).hexdigest()[:24]}"
