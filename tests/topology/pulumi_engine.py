"""Builds every template against mocks of Pulumi's engine and prints what was made, as JSON.

A process of its own: Pulumi's runtime leaves its event loop open.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pulumi

from postroad.topology import (
    Topology,
    agents_topology,
    bus_topology,
    chat_topology,
    task_topology,
    transfers_topology,
)
from postroad.topology.pulumi_component import TopologyComponent

ACCOUNT, REGION = "123456789012", "eu-central-1"
TEMPLATES = {
    "chat": chat_topology("rtchat", "prod"),
    "transfers": transfers_topology(),
    "tasks": task_topology("dev"),
    "agents": agents_topology(),
    "bus": bus_topology(),
}
_ANSWERS = {
    "aws:index/getPartition:getPartition": {"partition": "aws", "id": "aws"},
    "aws:index/getRegion:getRegion": {"id": REGION, "name": REGION, "region": REGION},
    "aws:index/getCallerIdentity:getCallerIdentity": {"accountId": ACCOUNT, "id": ACCOUNT},
}


class _Engine(pulumi.runtime.Mocks):
    """Notes every resource and answers with its inputs."""

    def __init__(self, account: str, region: str) -> None:
        self._answers = {
            "aws:index/getPartition:getPartition": {"partition": "aws", "id": "aws"},
            "aws:index/getRegion:getRegion": {"id": region, "name": region, "region": region},
            "aws:index/getCallerIdentity:getCallerIdentity": {"accountId": account, "id": account},
        }
        self.made: list[tuple[str, str, dict[str, Any]]] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        self.made.append((args.typ, args.name, dict(args.inputs)))
        name = args.name
        known = {"url": f"https://sqs/{name}", "arn": f"arn:of:{name}", "streamArn": f"arn:stream:{name}"}
        return f"{name}-id", {**args.inputs, **known}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        return self._answers[args.token], []


def built(topology: Topology, account: str, region: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every resource of the component: its type, its name and its inputs."""
    engine = _Engine(account, region)
    pulumi.runtime.set_mocks(engine, preview=False)
    pulumi.runtime.set_all_config({"postroad:codeBucket": "code", "postroad:codeKey": "postroad.zip"})
    run: Any = pulumi.runtime.test
    run(lambda: TopologyComponent("everything", topology).urn)()
    return engine.made


if __name__ == "__main__":
    print(json.dumps({name: built(topology, *sys.argv[1:]) for name, topology in TEMPLATES.items()}))
