"""Everything in an account that carries a topology's tag."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.connections.aws import AwsConnection
from postroad.topology.aws.calling import ask
from postroad.topology.declarations import DEFAULT_BUS
from postroad.topology.forms import OWNER_TAG
from postroad.topology.references import Key

_KINDS = {
    ("sqs", ""): "queue",
    ("sns", ""): "topic",
    ("kinesis", "stream"): "stream",
    ("dynamodb", "table"): "table",
    ("s3", ""): "bucket",
    ("events", "event-bus"): "bus",
    ("events", "rule"): "rule",
    ("lambda", "function"): "function",
    ("cloudwatch", "alarm"): "alarm",
}
# What calls goes before what is called, and a rule before its bus.
_ORDER = ("alarm", "rule", "function", "bus", "topic", "queue", "stream", "table", "bucket")


def owned(connection: AwsConnection, topology: str) -> list[Key]:
    """The resources with this topology's tag, in the order in which they can be removed."""
    keys = [key for arn in _tagged(connection, topology) if (key := key_of(arn)) is not None]
    return sorted(keys, key=lambda key: (_ORDER.index(key[0]), key[1]))


def key_of(arn: str) -> Key | None:
    """The kind and name behind an ARN; a rule's name begins with its bus and a slash."""
    _, _, service, _, _, rest = arn.split(":", 5)
    separator = ":" if service in ("lambda", "cloudwatch") else "/"
    family, found, name = rest.partition(separator)
    kind = _KINDS.get((service, family if found else ""))
    if kind is None:
        return None
    if kind == "rule" and "/" not in name:
        return kind, f"{DEFAULT_BUS}/{name}"
    return kind, name if found else rest


def _tagged(connection: AwsConnection, topology: str) -> Iterator[str]:
    token: dict[str, str] = {}
    while True:
        page = ask(
            f"what topology {topology!r} owns", connection.tagging.get_resources,
            TagFilters=[{"Key": OWNER_TAG, "Values": [topology]}], **token,
        )  # fmt: skip
        yield from (each["ResourceARN"] for each in page["ResourceTagMappingList"])
        if not page.get("PaginationToken"):
            return
        token = {"PaginationToken": page["PaginationToken"]}
