"""What AWS refuses and emulators accept: characters, sizes, counts and ranges, as AWS documents them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final

MESSAGE_BYTES: Final = 1_048_576
NOTIFICATION_BYTES: Final = 262_144
Problem = tuple[str, str]
"""A code of AWS and its message."""
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ATTRIBUTE_NAME: Final = re.compile(r"(?!(?i:AWS|Amazon)\.)(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIFO_ID: Final = re.compile(r"[!-~]{1,128}")
_QUEUE_NAME: Final = re.compile(r"(?=.{1,80}$)[A-Za-z0-9_-]+(\.fifo)?")
_RANGES: Final = {
    "DelaySeconds": (0, 900),
    "MaxNumberOfMessages": (1, 10),
    "MaximumMessageSize": (1_024, MESSAGE_BYTES),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
    "WaitTimeSeconds": (0, 20),
}
_WRONG_KIND: Final = "The request include parameter that is not valid for this queue type"
_PARTS_OF_AN_EVENT: Final = ("Source", "DetailType", "Detail")
_ITEM_BYTES: Final = 400 * 1024
_REQUEST_BYTES: Final = 16 * 1024 * 1024
_EXACT: Final = Context(prec=1_000)


def of_numbers(parameters: Mapping[str, Any], code: str = "InvalidParameterValue") -> Problem | None:
    """Return what is wrong with the numbers of a call or of a queue's attributes."""
    for name, (least, most) in _RANGES.items():
        value = parameters.get(name)
        if value is not None and not (str(value).lstrip("-").isdigit() and least <= int(value) <= most):
            return code, f"Value {value} for parameter {name} is invalid. Reason: Must be between {least} and {most}."
    return None


def of_queue(name: str | None, attributes: Mapping[str, str]) -> Problem | None:
    """Return what is wrong with a queue that is to be made or changed; `name` is None if it is not known."""
    if name is not None and not _QUEUE_NAME.fullmatch(name):
        words = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        return "InvalidParameterValue", words
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    target, count = str(policy.get("deadLetterTargetArn", "")), str(policy.get("maxReceiveCount", 1))
    if not (count.isdigit() and 1 <= int(count) <= 1_000):
        words = f"Value {count} for parameter maxReceiveCount is invalid. Reason: Must be between 1 and 1000."
        return "InvalidParameterValue", words
    if name is not None and target and target.endswith(".fifo") != name.endswith(".fifo"):
        words = "Dead-letter queue must be same type of queue as the source."
        return "InvalidParameterValue", f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {words}"
    return of_numbers(attributes, "InvalidAttributeValue")


def of_message(entry: Mapping[str, Any], *, fifo: bool, most: int) -> Problem | None:
    """Return what is wrong with a message for SQS."""
    attributes: Mapping[str, Any] = entry.get("MessageAttributes") or {}
    texts = [str(entry.get("MessageBody") or ""), *(str(each.get("StringValue", "")) for each in attributes.values())]
    if not texts[0]:
        return "MissingParameter", "The request must contain the parameter MessageBody."
    if (bad := next(filter(None, map(_FORBIDDEN.search, texts)), None)) is not None:
        found = f"Invalid binary character '#x{ord(bad.group()):X}' was found in the message body"
        return "InvalidMessageContents", f"{found}, the set of allowed characters is #x9 | #xA | #xD | [#x20 to #xD7FF]"
    if message_size(entry) > most:
        words = f"One or more parameters are invalid. Reason: Message must be shorter than {most} bytes."
        return "InvalidParameterValue", words
    return of_attributes(attributes) or _of_kind(entry, fifo=fifo) or of_numbers(entry)


def message_size(entry: Mapping[str, Any], body: str = "MessageBody") -> int:
    """Return the bytes that count: those of the body and of the names, types and values of attributes."""
    parts = [entry.get(body) or ""]
    for name, attribute in (entry.get("MessageAttributes") or {}).items():
        parts += [name, attribute.get("DataType") or "", attribute.get("StringValue") or ""]
        parts.append("x" * (len(attribute.get("BinaryValue") or "") * 3 // 4))
    return sum(len(str(part).encode()) for part in parts)


def of_attributes(attributes: Mapping[str, Any]) -> Problem | None:
    if len(attributes) > 10:
        words = f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [10]."
        return "InvalidParameterValue", words
    for name, attribute in attributes.items():
        if not _ATTRIBUTE_NAME.fullmatch(name):
            return "InvalidParameterValue", f"Message attribute name '{name}' is invalid."
        if not str(attribute.get("DataType", "")).startswith(("String", "Number", "Binary")):
            return "InvalidParameterValue", f"The type of message attribute '{name}' is invalid."
        if not attribute.get("StringValue") and not attribute.get("BinaryValue"):
            return "InvalidParameterValue", f"Message attribute '{name}' must contain a non-empty value."
    return None


def _of_kind(entry: Mapping[str, Any], *, fifo: bool) -> Problem | None:
    for name in ("MessageGroupId", "MessageDeduplicationId"):
        value = entry.get(name)
        if value is not None and not _FIFO_ID.fullmatch(value):
            return "InvalidParameterValue", f"Value {value} for parameter {name} is invalid."
    if fifo and not entry.get("MessageGroupId"):
        return "MissingParameter", "The request must contain the parameter MessageGroupId."
    name = "DelaySeconds" if fifo else "MessageDeduplicationId"
    if entry.get(name):
        return "InvalidParameterValue", f"Value {entry[name]} for parameter {name} is invalid. Reason: {_WRONG_KIND}."
    return None


def of_batch(ids: Sequence[str], size: int, most_bytes: int) -> Problem | None:
    """Return what is wrong with a batch as a whole."""
    if not ids:
        return "EmptyBatchRequest", "There should be at least one entry in the request."
    if len(ids) > 10:
        words = f"Maximum number of entries per request are 10. You have sent {len(ids)}."
        return "TooManyEntriesInBatchRequest", words
    if len(set(ids)) < len(ids):
        return "BatchEntryIdsNotDistinct", "Two or more batch entries in the request have the same Id."
    if not all(map(_ENTRY_ID.fullmatch, ids)):
        return "InvalidBatchEntryId", "A batch entry id can only contain letters, digits, hyphens and underscores."
    if size > most_bytes:
        words = f"Batch requests cannot be longer than {most_bytes} bytes. You have sent {size} bytes."
        return "BatchRequestTooLong", words
    return None


def of_notification(entry: Mapping[str, Any]) -> Problem | None:
    """Return what is wrong with a message for SNS."""
    if not entry["Message"]:
        return "InvalidParameter", "Invalid parameter: Empty message"
    if message_size(entry, "Message") > NOTIFICATION_BYTES:
        return "InvalidParameter", "Invalid parameter: Message too long"
    return None


def of_events(entries: Sequence[Mapping[str, Any]]) -> Problem | None:
    """Return what is wrong with a call of PutEvents as a whole."""
    if not 1 <= len(entries) <= 10:
        return "ValidationException", "Member must have length between 1 and 10"
    size = sum(len(str(entry.get(name, "")).encode()) for entry in entries for name in _PARTS_OF_AN_EVENT)
    if size > MESSAGE_BYTES:
        return "ValidationException", "Total size of the entries in the request is over the limit."
    return None


def of_event(entry: Mapping[str, Any]) -> Problem | None:
    for name in _PARTS_OF_AN_EVENT:
        if not entry.get(name):
            return "InvalidArgument", f"Parameter {name} is not valid. Reason: {name} is a required argument."
    try:
        detail = json.loads(entry["Detail"])
    except ValueError:
        detail = None
    return None if isinstance(detail, dict) else ("MalformedDetail", "Detail is malformed.")


def of_writes(document: Mapping[str, Any]) -> Problem | None:
    """Return what is wrong with a PutItem or BatchWriteItem of DynamoDB."""
    writes = [write for table in (document.get("RequestItems") or {}).values() for write in table]
    if len(json.dumps(document)) > _REQUEST_BYTES:
        return "ValidationException", "The request size exceeds 16777216 bytes"
    if len(writes) > 25:
        return "ValidationException", "Too many items requested for the BatchWriteItem call"
    items = [write["PutRequest"]["Item"] for write in writes if "PutRequest" in write]
    items += [document["Item"]] if "Item" in document else []
    return next(filter(None, map(_of_item, items)), None)


def normalise(value: Any) -> None:
    """Change the numbers inside to what DynamoDB makes of them: 1.0 comes back as 1."""
    if isinstance(value, list):
        for child in value:
            normalise(child)
    elif isinstance(value, dict):
        if isinstance(value.get("N"), str) and len(value) == 1:
            number = _EXACT.normalize(Decimal(value["N"]))
            value["N"] = f"{number:f}" if number else "0"
        for child in value.values():
            normalise(child)


def _of_item(item: Mapping[str, Any]) -> Problem | None:
    words = None
    nested = [each for value in item.values() for each in _nested(value)]
    if max((level for level, _ in nested), default=0) > 32:
        words = "Nesting Levels have exceeded supported limits"
    elif sum(len(name.encode()) + _size(value) for name, value in item.items()) > _ITEM_BYTES:
        words = "Item size has exceeded the maximum allowed size"
    elif any("" in value.get("M", ()) for _, value in nested):
        words = "One or more parameter values were invalid: an attribute name is empty"
    elif any(_digits(value.get("N", "0")) > 38 for _, value in nested):
        words = "Attempting to store more than 38 significant digits in a Number"
    return None if words is None else ("ValidationException", words)


def _nested(value: Mapping[str, Any], above: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield a value and all values inside it, each with the number of maps and lists down to it."""
    level = above + ("M" in value or "L" in value)
    yield level, value
    for child in value["M"].values() if "M" in value else value.get("L", ()):
        yield from _nested(child, level)


def _digits(number: str) -> int:
    return len(_EXACT.normalize(Decimal(number)).as_tuple().digits)


def _size(value: Mapping[str, Any]) -> int:
    [(kind, held)] = value.items()
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _size(child) for name, child in held.items())
    if kind == "L":
        return 3 + sum(1 + _size(child) for child in held)
    if kind == "N":
        return 1 + (_digits(held) + 1) // 2
    return len(str(held).encode()) if kind in ("S", "B") else 1
