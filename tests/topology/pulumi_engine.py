"""Runs Pulumi programs against mocks of its engine and prints what they made, as JSON.

A process of its own: Pulumi's runtime leaves its event loop open.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pulumi
import pulumi_aws

from postroad.topology import (
    Topology,
    agents_topology,
    bus_topology,
    chat_topology,
    task_topology,
    transfers_topology,
)
from postroad.topology.pulumi_component import TopologyComponent

TEMPLATES = {
    "chat": chat_topology("rtchat", "prod"),
    "transfers": transfers_topology(),
    "tasks": task_topology("dev"),
    "agents": agents_topology(),
    "bus": bus_topology(),
}
OTHER_REGION = "us-east-2"


class _Engine(pulumi.runtime.Mocks):
    """Notes every resource, answers with its inputs, and refuses a second one of the same type and name."""

    def __init__(self, account: str, region: str) -> None:
        self._account, self._region = account, region
        self.made: dict[tuple[str, str], dict[str, Any]] = {}

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if (args.typ, args.name) in self.made:
            raise ValueError(f"Duplicate resource URN: {args.typ}::{args.name}")
        self.made[args.typ, args.name] = dict(args.inputs)
        name = args.inputs.get("name", args.name)
        known = {"url": f"https://sqs/{name}", "arn": f"arn:of:{name}", "streamArn": f"arn:stream:{name}"}
        return f"{args.name}-id", {**args.inputs, **known}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        """The partition, region and account of the provider that is asked; a provider's name is its region."""
        region = OTHER_REGION if f"::{OTHER_REGION}::" in (args.provider or "") else self._region
        answers = {
            "aws:index/getPartition:getPartition": {"partition": "aws"},
            "aws:index/getRegion:getRegion": {"id": region, "region": region},
            "aws:index/getCallerIdentity:getCallerIdentity": {"accountId": self._account},
        }
        return answers[args.token], []


def one(topology: Topology) -> Any:
    """A stack with one component."""
    return TopologyComponent("everything", topology).urn


def two() -> Any:
    """A stack with two topologies whose components have the same names."""
    components = [TopologyComponent(env, chat_topology("rtchat", env)) for env in ("prod", "dev")]
    return pulumi.Output.all(*(component.urn for component in components))


def elsewhere() -> Any:
    """A stack whose component has a provider of its own."""
    provider = pulumi_aws.Provider(OTHER_REGION, region=OTHER_REGION)
    options = pulumi.ResourceOptions(provider=provider)
    return TopologyComponent("everything", transfers_topology(), options).urn


def page(text: str) -> None:
    """The program on a page of the documentation."""
    _, _, rest = text.partition('```python title="__main__.py"\n')
    program, _, _ = rest.partition("```\n")
    exec(compile(program, "__main__.py", "exec"), {"__name__": "__main__"})


def made(program: Callable[[], Any], account: str, region: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every resource that the program makes: its type, its name and its inputs."""
    engine = _Engine(account, region)
    pulumi.runtime.set_mocks(engine, preview=False)
    pulumi.runtime.set_all_config({"postroad:codeBucket": "code", "postroad:codeKey": "postroad.zip"})
    run: Any = pulumi.runtime.test
    run(program)()
    return [(kind, name, inputs) for (kind, name), inputs in engine.made.items()]


def main(account: str, region: str, documentation: str) -> None:
    """Run all programs, each in a stack of its own."""
    programs: dict[str, Callable[[], Any]] = {
        **{name: partial(one, topology) for name, topology in TEMPLATES.items()},
        "two": two,
        "elsewhere": elsewhere,
        "page": lambda: page(documentation),
    }
    print(json.dumps({name: made(program, account, region) for name, program in programs.items()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.stdin.read())
