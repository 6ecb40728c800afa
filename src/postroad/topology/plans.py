"""Plans: what a store lacks of a topology, in order, and how it is carried out, each step by itself."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec

from postroad import failpoints
from postroad.arguments import check, text
from postroad.errors import PlanChanged, PostroadError, TopologyConflict, TopologyError
from postroad.ports import Store
from postroad.telemetry import get_logger, recorded
from postroad.topology.declarations import AlarmDecl, Resource
from postroad.topology.lint import check as lint
from postroad.topology.names import Key, needs, ordered
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


Verb = Literal["create", "update", "replace", "delete", "skip"]

_Code = text("s3://[^/]+/.+", "s3://bucket/key")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `changes` are (have, want) by field."""

    verb: Verb
    kind: str
    name: str
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything to do, in the order of its doing; `digest` names exactly this plan."""

    actions: tuple[Action, ...]
    unchanged: int
    unverifiable: tuple[str, ...]
    digest: str

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return all(action.verb == "skip" for action in self.actions)


@dataclass(frozen=True, slots=True)
class Drift:
    """A setting that is not as declared. A resource that is gone has no field and no `have`."""

    kind: str
    name: str
    field: str
    want: Any
    have: Any


@dataclass(frozen=True, slots=True)
class Survey:
    """A plan together with what was seen on the way to it."""

    plan: Plan
    site: Site
    looks: Mapping[tuple[str, str], Look]


def plan(topology: Topology, backend: Sited, *, prune: bool = False, code: str | None = None) -> Plan:
    """What `apply` with the same arguments would do now; reads only."""
    return survey(topology, backend, prune=prune, code=code).plan


def drift(topology: Topology, backend: Sited) -> tuple[Drift, ...]:
    """Every setting that differs from its declaration; reads only."""
    found = survey(topology, backend, prune=False, code=None)
    return tuple(each for look in found.looks.values() for each in _drifts(look))


def survey(topology: Topology, backend: Sited, *, prune: bool, code: str | None) -> Survey:
    """Look at everything once and draw up the plan."""
    lint(topology)
    check(code, _Code | None, "code", TopologyError)
    site = backend.site()
    looks = [site.look(topology, resource, code=code) for resource in ordered(topology)]
    actions = [action for look in looks if (action := _action(look)) is not None]
    unchanged = len(looks) - len(actions)
    if prune:
        actions += _removals(site, topology)
    unverifiable = [
        f"{look.resource.kind} {look.resource.name}: {name}" for look in looks for name in look.unverifiable
    ]
    made = Plan(tuple(actions), unchanged, tuple(unverifiable), _digest(topology.name, actions))
    return Survey(made, site, {(look.resource.kind, look.resource.name): look for look in looks})


def _action(look: Look) -> Action | None:
    kind, name = look.resource.kind, look.resource.name
    if look.skip is not None:
        return Action("skip", kind, name, {}, look.skip)
    if look.have is None:
        return Action("create", kind, name, {key: (None, value) for key, value in look.want.items()})
    changes = look.differences
    if look.fixed:
        reason = f"{', '.join(look.fixed)} cannot be changed in place"
        return Action("replace", kind, name, changes, reason)
    return Action("update", kind, name, changes) if changes else None


def _removals(site: Site, topology: Topology) -> Iterator[Action]:
    for stray in site.strays(topology):
        verb: Verb = "skip" if stray.keep else "delete"
        yield Action(verb, *stray.key, {}, stray.keep or "no longer declared")


def _drifts(look: Look) -> Iterator[Drift]:
    kind, name = look.resource.kind, look.resource.name
    if look.skip is not None:
        return
    if look.have is None:
        yield Drift(kind, name, "", dict(look.want), None)
        return
    for key, (have, want) in look.differences.items():
        yield Drift(kind, name, key, want, have)


def _canonical(value: Any) -> Any:
    """The value with 60 and 60.0 alike: a topology that was written down and read back gives the same plan."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _canonical(each) for key, each in value.items()}
    return [_canonical(each) for each in value] if isinstance(value, list | tuple) else value


def _digest(name: str, actions: Sequence[Action]) -> str:
    told = _canonical(msgspec.to_builtins([name, *actions]))
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What was done, what failed and why, and what is not made here."""

    applied: tuple[Action, ...]
    failed: tuple[tuple[Action, str], ...]
    skipped: tuple[Action, ...]


def apply(
    topology: Topology,
    backend: Sited,
    *,
    expect: str | None = None,
    allow_replace: bool = False,
    prune: bool = False,
    code: str | None = None,
    actor: str | None = None,
) -> ApplyResult:
    """Do what the plan lists and nothing else. Running it again finishes what failed."""
    found = survey(topology, backend, prune=prune, code=code)
    if expect is not None and not hmac.compare_digest(expect.encode(), found.plan.digest.encode()):
        raise PlanChanged(f"expect: the plan is now {found.plan.digest}, not {expect}", field="expect")
    _check_replacements(found, allow_replace=allow_replace)
    if found.plan.empty:
        return ApplyResult((), (), found.plan.actions)
    detail = {"digest": found.plan.digest, "actions": _told(found)}
    with recorded(backend.audit_log(), "topology.apply", topology.name, detail, actor=actor) as done:
        done["digest"] = found.plan.digest
        result = _carry_out(topology, found)
        counts = {"applied": len(result.applied), "failed": len(result.failed), "skipped": len(result.skipped)}
        done |= counts
    get_logger("topology").info("topology_applied", topology=topology.name, digest=found.plan.digest, **counts)
    return result


def _check_replacements(found: Survey, *, allow_replace: bool) -> None:
    for action in found.plan.actions:
        if action.verb != "replace":
            continue
        fields = ", ".join(found.looks[action.kind, action.name].fixed)
        if not allow_replace:
            raise TopologyConflict(
                f"{action.kind} {action.name!r}: {fields} cannot be changed in place",
                field=fields,
                remedy="Allow the replacement (allow_replace, --allow-replace); nothing was changed.",
            )
        if found.site.holds_items(found.looks[action.kind, action.name].resource):
            raise TopologyConflict(
                f"{action.kind} {action.name!r}: {fields} cannot be changed while it holds an item",
                field=fields,
                remedy="Copy the items to a table of another name; nothing was changed.",
            )


def _carry_out(topology: Topology, found: Survey) -> ApplyResult:
    applied: list[Action] = []
    failed: dict[Key, tuple[Action, str]] = {}
    for action in _to_do(found.plan.actions):
        blocking = _blocking(topology, action, failed)
        why = f"not tried: {' '.join(blocking)} failed" if blocking else _perform(topology, found, action)
        if why is None:
            applied.append(action)
        else:
            failed[action.kind, action.name] = (action, why)
    skipped = tuple(action for action in found.plan.actions if action.verb == "skip")
    return ApplyResult(tuple(applied), tuple(failed.values()), skipped)


def _to_do(actions: Sequence[Action]) -> Iterator[Action]:
    return (action for action in actions if action.verb != "skip")


def _blocking(topology: Topology, action: Action, failed: dict[Key, Any]) -> Key | None:
    resource = topology.find(action.kind, action.name)
    required = () if resource is None else needs(topology, resource)
    return next((key for key in required if key in failed), None)


def _perform(topology: Topology, found: Survey, action: Action) -> str | None:
    """Why the action failed; None when it is done."""
    try:
        _do(topology, found, action)
    except PostroadError as error:
        return str(error)
    failpoints.hit("topology.apply.mid")
    return None


def _do(topology: Topology, found: Survey, action: Action) -> None:
    if action.verb == "delete":
        found.site.delete((action.kind, action.name))
        return
    look: Look = found.looks[action.kind, action.name]
    if action.verb == "create":
        found.site.create(topology, look)
    elif action.verb == "replace":
        found.site.replace(topology, look)
    else:
        found.site.update(topology, look, tuple(action.changes))


def _told(found: Survey) -> list[str]:
    return [f"{action.verb} {action.kind} {action.name}" for action in _to_do(found.plan.actions)]
