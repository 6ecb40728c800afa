"""The topology: everything a deployment needs, in one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from postroad.errors import TopologyError
from postroad.topology.declarations import DECLARATIONS, Component, Resource
from postroad.topology.reading import read_topology


@dataclass(frozen=True)
class Topology:
    """Resources, and the components that use them. `tags` are put on every resource."""

    name: str
    resources: tuple[Resource, ...]
    components: tuple[Component, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", tuple(self.resources))
        object.__setattr__(self, "components", tuple(self.components))
        _check_types(self)

    def get(self, kind: str, name: str) -> Resource:
        """The resource of this kind and name, or KeyError."""
        return self._index[kind, name]

    def find(self, kind: str, name: str) -> Resource | None:
        """The resource of this kind and name, or None."""
        return self._index.get((kind, name))

    def of(self, kind: str) -> tuple[Resource, ...]:
        """All resources of this kind, in the order of their declaration."""
        return tuple(resource for resource in self.resources if resource.kind == kind)

    def to_json(self) -> str:
        """The topology as JSON that `from_json` reads back to an equal one."""
        document = {
            "name": self.name,
            "tags": dict(self.tags),
            "resources": [{"kind": each.kind, **msgspec.to_builtins(each)} for each in self.resources],
            "components": [msgspec.to_builtins(each) for each in self.components],
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Topology:
        """The topology that was written down, or `TopologyError` with the path of what cannot be read."""
        parts: Any = read_topology(text)
        return cls(**parts)

    @cached_property
    def _index(self) -> dict[tuple[str, str], Resource]:
        return {(resource.kind, resource.name): resource for resource in self.resources}


def _check_types(topology: Topology) -> None:
    for name, wanted in (("resources", DECLARATIONS), ("components", (Component,))):
        for index, each in enumerate(getattr(topology, name)):
            if not isinstance(each, wanted):
                where = f"{name}[{index}]"
                raise TopologyError(f"{where}: is {type(each).__name__}, not a declaration", field=where)
