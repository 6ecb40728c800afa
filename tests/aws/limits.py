"""The limits that AWS applies and emulators do not: an endpoint in front of an emulator that refuses in AWS's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Context, Decimal
from typing import Any

from tests.aws.endpoint import Answer, Endpoint, endpoint

MOST_LEVELS = 32
MOST_BATCH_BYTES = 16 * 1024 * 1024
MOST_ITEM_BYTES = 400 * 1024
MOST_DIGITS = 38
_EXACT = Context(prec=1_000)
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@contextmanager
def with_limits(emulator: str) -> Iterator[Endpoint]:
    """Serve the emulator as AWS would: with its characters of SQS, and its levels, sizes and numbers of DynamoDB."""
    with endpoint(emulator) as served:
        served.on("SendMessage", _send)
        served.on("SendMessageBatch", _send_batch)
        served.on("BatchWriteItem", _batch_write)
        served.on("PutItem", _put_item)
        yield served


def invalid(message: str) -> Answer:
    """DynamoDB's refusal of what it will never take."""
    return Answer({"__type": "com.amazon.coral.validate#ValidationException", "message": message}, 400)


def contents(body: str) -> str | None:
    """SQS's words about a body that it does not take; None for one that it does."""
    bad = _FORBIDDEN.search(body)
    if bad is None:
        return None
    return f"Invalid binary character '#x{ord(bad.group()):X}' was found in the message body"


def _send(parameters: dict[str, Any]) -> Answer | None:
    words = contents(parameters["MessageBody"])
    code = "com.amazonaws.sqs#InvalidMessageContents"
    return None if words is None else Answer({"__type": code, "message": words}, 400)


def _send_batch(parameters: dict[str, Any]) -> Answer | None:
    failed = [
        {"Id": entry["Id"], "SenderFault": True, "Code": "InvalidMessageContents", "Message": words}
        for entry in parameters["Entries"]
        if (words := contents(entry["MessageBody"])) is not None
    ]
    bad = {entry["Id"] for entry in failed}
    parameters["Entries"] = [entry for entry in parameters["Entries"] if entry["Id"] not in bad]
    if not failed:
        return None
    return Answer({"Failed": failed}, added=bool(parameters["Entries"]))


def _batch_write(parameters: dict[str, Any]) -> Answer | None:
    writes = [write for table in parameters["RequestItems"].values() for write in table]
    if len(json.dumps(parameters)) > MOST_BATCH_BYTES:
        return invalid("The request size exceeds 16777216 bytes")
    if len(writes) > 25:
        return invalid("Too many items requested for the BatchWriteItem call")
    items = [write["PutRequest"]["Item"] for write in writes if "PutRequest" in write]
    return next((refusal for item in items if (refusal := _refused(item)) is not None), None)


def _put_item(parameters: dict[str, Any]) -> Answer | None:
    return _refused(parameters["Item"])


def _refused(item: Mapping[str, Any]) -> Answer | None:
    if max(map(_levels, item.values())) > MOST_LEVELS:
        return invalid("Nesting Levels have exceeded supported limits")
    if sum(len(name.encode()) + _size(value) for name, value in item.items()) > MOST_ITEM_BYTES:
        return invalid("Item size has exceeded the maximum allowed size")
    if any(_has_nameless(value) for value in item.values()):
        return invalid("One or more parameter values were invalid: an attribute name is empty")
    if any(map(_has_long_number, item.values())):
        return invalid("Attempting to store more than 38 significant digits in a Number")
    for value in item.values():
        _normalise(value)
    return None


def _children(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "M" in value:
        return list(value["M"].values())
    children: list[Mapping[str, Any]] = value.get("L", [])
    return children


def _levels(value: Mapping[str, Any]) -> int:
    return 1 + max(map(_levels, _children(value)), default=0) if "M" in value or "L" in value else 0


def _has_nameless(value: Mapping[str, Any]) -> bool:
    return "" in value.get("M", {}) or any(map(_has_nameless, _children(value)))


def _has_long_number(value: Mapping[str, Any]) -> bool:
    return _digits(value.get("N", "0")) > MOST_DIGITS or any(map(_has_long_number, _children(value)))


def _digits(number: str) -> int:
    return len(_EXACT.normalize(Decimal(number)).as_tuple().digits)


def _normalise(value: Any) -> None:
    """Change numbers to what DynamoDB makes of them: 1.0 comes back as 1."""
    if "N" in value:
        number = _EXACT.normalize(Decimal(value["N"]))
        value["N"] = f"{number:f}" if number else "0"
    for child in _children(value):
        _normalise(child)


def _size(value: Mapping[str, Any]) -> int:
    """The size as AWS documents it."""
    [(kind, held)] = value.items()
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _size(child) for name, child in held.items())
    if kind == "L":
        return 3 + sum(1 + _size(child) for child in held)
    if kind == "N":
        return 1 + (_digits(held) + 1) // 2
    return len(held.encode()) if kind == "S" else 1
