"""What plan and apply ask of a store, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from postroad.ports import Store
from postroad.topology.declarations import AlarmDecl, Resource
from postroad.topology.references import Key
from postroad.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Look:
    """One resource as it shall be and as it is; `have` is None when there is none."""

    resource: Resource
    want: Mapping[str, Any] = field(default_factory=dict)
    have: Mapping[str, Any] | None = None
    unverifiable: tuple[str, ...] = ()
    """Fields that the store takes but never tells."""
    fixed: tuple[str, ...] = ()
    """Fields that differ and cannot be changed in place."""
    skip: str | None = None
    """Why nothing is made of it here."""

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The fields that differ, as (have, want)."""
        have = self.have or {}
        told = {name: value for name, value in self.want.items() if name not in self.unverifiable}
        return {name: (have.get(name), value) for name, value in told.items() if have.get(name) != value}


@dataclass(frozen=True, slots=True)
class Stray:
    """A resource that the topology once made and no longer declares; `keep` says why it is not removed."""

    key: Key
    keep: str = ""


class Site(Protocol):
    """A store on which a topology stands. A site looks at things once: take a new one for every plan."""

    gathers_metrics: bool
    """Whether programs report their metrics to it, so that one that is missing says something."""

    def look(self, topology: Topology, resource: Resource, *, code: str | None) -> Look:
        """See one resource, reading only."""
        ...

    def strays(self, topology: Topology) -> Sequence[Stray]:
        """What this topology owns and does not declare."""
        ...

    def holds_items(self, resource: Resource) -> bool:
        """Whether replacing the resource would lose something."""
        ...

    def create(self, topology: Topology, look: Look) -> None:
        """Make the resource."""
        ...

    def update(self, topology: Topology, look: Look, fields: Collection[str]) -> None:
        """Change these fields and no other."""
        ...

    def replace(self, topology: Topology, look: Look) -> None:
        """Remove the resource and make it anew."""
        ...

    def delete(self, key: Key) -> None:
        """Remove a stray."""
        ...

    def measure(self, topology: Topology, alarm: AlarmDecl) -> float | None:
        """The metric of an alarm as it is now; None when nobody knows."""
        ...


class Sited(Store, Protocol):
    """A backend on which a topology can stand."""

    def site(self) -> Site: ...


def keep_dead_letters(strays: Sequence[Stray], sources: Callable[[str], Collection[str]]) -> list[Stray]:
    """The strays, of which a queue stays while one that stays has its dead letters there; `sources` tells which do."""
    asked = {stray.key[1]: sorted(sources(stray.key[1])) for stray in strays if _goes(stray)}
    reasons: dict[str, str] = {}
    while found := {name: why for name in asked if name not in reasons and (why := _needed(asked, name, reasons))}:
        reasons |= found
    return [replace(stray, keep=reasons[stray.key[1]]) if _kept(stray, reasons) else stray for stray in strays]


def _goes(stray: Stray) -> bool:
    return stray.key[0] == "queue" and not stray.keep


def _kept(stray: Stray, reasons: dict[str, str]) -> bool:
    return _goes(stray) and stray.key[1] in reasons


def _needed(asked: dict[str, list[str]], name: str, reasons: dict[str, str]) -> str:
    staying = [source for source in asked[name] if source not in asked or source in reasons]
    return f"queue {staying[0]!r} has its dead letters there" if staying else ""
