"""The statement in a queue's access policy by which one topic may send to it, and nobody else by that way."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from postroad.connections.aws_rights import SEND, VERSION


def allow(policy: str | None, *, service: str, source_arn: str, queue_arn: str) -> str:
    """The policy with the statement for this source; all others stay."""
    document = _document(policy)
    statement = {
        "Sid": _sid(source_arn),
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": SEND[0],
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": source_arn}},
    }
    if statement in document["Statement"]:
        return policy or ""
    document["Statement"] = [*_others(document, source_arn), statement]
    return json.dumps(document)


def disallow(policy: str | None, *, source_arn: str) -> str:
    """The policy without the statement for this source; empty when nothing is left."""
    document = _document(policy)
    others = _others(document, source_arn)
    if len(others) == len(document["Statement"]):
        return policy or ""
    document["Statement"] = others
    return json.dumps(document) if others else ""


def _document(policy: str | None) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(policy) if policy else {"Version": VERSION}
    statements = document.get("Statement", [])
    document["Statement"] = statements if isinstance(statements, list) else [statements]
    return document


def _others(document: dict[str, Any], source_arn: str) -> list[dict[str, Any]]:
    return [statement for statement in document["Statement"] if statement.get("Sid") != _sid(source_arn)]


def _sid(source_arn: str) -> str:
    return f"postroad{hashlib.sha256(source_arn.encode()).hexdigest()[:24]}"
