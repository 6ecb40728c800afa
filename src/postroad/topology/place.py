"""Where a topology stands: the partition, region and account in its ARNs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from postroad.topology.declarations import DEFAULT_BUS

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
