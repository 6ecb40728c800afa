"""Names that AWS accepts, and the addresses that follow from them at a place."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from postroad.topology.declarations import DEFAULT_BUS
from postroad.topology.topology import Finding, refuse

ACCOUNT = "${AWS::AccountId}"
_FIFO = ".fifo"
_MARK = 8
_DIGITS = "000000000000"
_LONGEST = {
    "queue": 80,
    "topic": 256,
    "stream": 128,
    "table": 255,
    "bucket": 63,
    "bus": 256,
    "rule": 64,
    "function": 64,
    "alarm": 255,
    "component": 64,
    "role": 64,
    "topology": 128,
}
_SHORTEST = {"table": 3, "bucket": 3}
_FORMS = {
    "queue": r"[A-Za-z0-9_-]+(\.fifo)?",
    "topic": r"[A-Za-z0-9_-]+(\.fifo)?",
    "stream": r"[A-Za-z0-9_.-]+",
    "table": r"[A-Za-z0-9_.-]+",
    "bucket": r"[a-z0-9][a-z0-9.-]*[a-z0-9]",
    "bus": r"[A-Za-z0-9_.-]+",
    "rule": r"[A-Za-z0-9_.-]+",
    "function": r"[A-Za-z0-9_-]+",
    "alarm": r"[ -~]+",
    "component": r"[A-Za-z0-9_+=,.@-]+",
    "role": r"[A-Za-z0-9_+=,.@-]+",
    "topology": r"[A-Za-z0-9_.-]+",
}
_REMEDIES = {
    "queue": "Use 1 to 80 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO.",
    "bucket": "Use 3 to 63 lower-case letters, digits, '-' or '.'.",
}


def aws_name(dotted: str, *, fifo: bool = False) -> str:
    """The name of a queue or topic for a dotted one: 'gateway.usdc' becomes 'gateway-usdc', with '.fifo' if FIFO."""
    name: object = dotted
    if isinstance(name, str):
        name = name.removesuffix(_FIFO).replace(".", "-") + (_FIFO if fifo else "")
    if (finding := name_finding("queue", name)) is not None:
        raise refuse([finding])
    return str(name)


def role_name(*parts: str) -> str:
    """The name of a role out of its parts; one that is too long for AWS ends in a hash instead of its tail."""
    name = "-".join(parts)
    if len(name) <= _LONGEST["role"]:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:_MARK]
    return f"{name[: _LONGEST['role'] - _MARK - 1]}-{mark}"


def name_finding(kind: str, name: object) -> Finding | None:
    """What is wrong with a name; None when AWS accepts it."""
    if kind not in _FORMS or _fits(kind, name):
        return None
    remedy = _REMEDIES.get(kind, f"Use {_SHORTEST.get(kind, 1)} to {_LONGEST[kind]} letters, digits, '-' or '_'.")
    shown = repr(name)[:120]
    return Finding("name-invalid", "error", str(name), f"{shown} is not the name of a {kind}", remedy)


def _fits(kind: str, name: object) -> bool:
    if not isinstance(name, str):
        return False
    plain = name.replace(ACCOUNT, _DIGITS) if kind == "bucket" else name
    within = _SHORTEST.get(kind, 1) <= len(plain) <= _LONGEST[kind]
    return within and re.fullmatch(_FORMS[kind], plain) is not None


TOKENS = ("${AWS::Partition}", "${AWS::Region}", "${AWS::AccountId}")
"""What stands for them while they are unknown, in CloudFormation's own spelling."""

_ARNS = {
    "queue": "arn:{partition}:sqs:{region}:{account}:{name}",
    "topic": "arn:{partition}:sns:{region}:{account}:{name}",
    "stream": "arn:{partition}:kinesis:{region}:{account}:stream/{name}",
    "table": "arn:{partition}:dynamodb:{region}:{account}:table/{name}",
    "bucket": "arn:{partition}:s3:::{name}",
    "bus": "arn:{partition}:events:{region}:{account}:event-bus/{name}",
    "function": "arn:{partition}:lambda:{region}:{account}:function:{name}",
    "alarm": "arn:{partition}:cloudwatch:{region}:{account}:alarm:{name}",
    "log": "arn:{partition}:logs:{region}:{account}:log-group:/aws/lambda/{name}:*",
    "role": "arn:{partition}:iam::{account}:role/{name}",
    "rule": "arn:{partition}:events:{region}:{account}:rule/{name}",
}


@dataclass(frozen=True, slots=True)
class Place:
    """One account in one region."""

    partition: str = TOKENS[0]
    region: str = TOKENS[1]
    account: str = TOKENS[2]

    def arn(self, kind: str, name: str) -> str:
        """The ARN of the resource of this kind and name; a rule's name is that of its bus, a slash and its own."""
        plain = name.removeprefix(f"{DEFAULT_BUS}/") if kind == "rule" else name
        arn = _ARNS[kind].format(partition=self.partition, region=self.region, account=self.account, name=plain)
        return str(self.fill(arn))

    def fill(self, value: Any) -> Any:
        """The value with the tokens inside it replaced."""
        if isinstance(value, str):
            return _fill(value, (self.partition, self.region, self.account))
        if isinstance(value, dict):
            return {self.fill(key): self.fill(each) for key, each in value.items()}
        return [self.fill(each) for each in value] if isinstance(value, list | tuple) else value


def _fill(text: str, values: tuple[str, str, str]) -> str:
    for token, value in zip(TOKENS, values, strict=True):
        text = text.replace(token, value)
    return text


SOMEWHERE = Place()
"""A place that is known only when the topology is deployed."""

_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]+")
_ACCOUNT = re.compile(r"[0-9]{12}")
_PARTITION = re.compile(r"aws(-[a-z]+)*")


def is_region(text: object) -> bool:
    """Whether it looks like the name of a region."""
    return isinstance(text, str) and _REGION.fullmatch(text) is not None


def is_account(text: object) -> bool:
    """Whether it is an account's number."""
    return isinstance(text, str) and _ACCOUNT.fullmatch(text) is not None


def is_partition(text: object) -> bool:
    """Whether it looks like the name of a partition, such as aws or aws-us-gov."""
    return isinstance(text, str) and _PARTITION.fullmatch(text) is not None
