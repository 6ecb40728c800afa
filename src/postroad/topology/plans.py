"""Plans: the changes that a store needs for a topology, in order, and how they are made one by one."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Collection, Mapping, Sequence
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

Verb = Literal["create", "update", "replace", "delete", "skip"]


@dataclass(frozen=True, slots=True)
class Look:
    """One resource as it should be and as it is; `have` is None if it does not exist."""

    resource: Resource
    want: Mapping[str, Any] = field(default_factory=dict)
    have: Mapping[str, Any] | None = None
    unverifiable: tuple[str, ...] = ()
    """Fields that the store accepts but never returns."""
    fixed: tuple[str, ...] = ()
    """Fields that differ and cannot be changed in place."""
    skip: str | None = None
    """Why it is not made here."""

    @property
    def key(self) -> Key:
        return self.resource.kind, self.resource.name

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The fields that differ, as (have, want)."""
        have = self.have or {}
        known = {name: value for name, value in self.want.items() if name not in self.unverifiable}
        return {name: (have.get(name), value) for name, value in known.items() if have.get(name) != value}


@dataclass(frozen=True, slots=True)
class Stray:
    """A resource that the topology once made and no longer declares; `keep` says why it is not removed."""

    key: Key
    keep: str = ""


class Site(Protocol):
    """A store that a topology is applied to. It reads each resource once: take a new one for every plan."""

    gathers_metrics: bool
    """Whether programs report their metrics to it, so that a missing metric means something."""

    def look(self, topology: Topology, resource: Resource, *, code: str | None) -> Look:
        """Read one resource."""
        ...

    def strays(self, topology: Topology) -> Sequence[Stray]:
        """Return what this topology owns and does not declare."""
        ...

    def holds_items(self, resource: Resource) -> bool:
        """Return whether replacing the resource would lose data."""
        ...

    def create(self, look: Look) -> None:
        """Make the resource."""
        ...

    def update(self, look: Look, fields: Collection[str]) -> None:
        """Change these fields and no other."""
        ...

    def delete(self, key: Key) -> None:
        """Remove a stray, or what is replaced."""
        ...

    def measure(self, topology: Topology, alarm: AlarmDecl) -> float | None:
        """Return the current value of an alarm's metric, or None if it is not known."""
        ...


class Sited(Store, Protocol):
    """A backend that a topology can be applied to."""

    def site(self) -> Site: ...


def keep_dead_letters(strays: Sequence[Stray], sources: Callable[[str], Collection[str]]) -> list[Stray]:
    """Return the strays, keeping each queue in which a queue that stays has its dead letters."""
    removable = [stray.key[1] for stray in strays if stray.key[0] == "queue" and not stray.keep]
    sources_of = {name: sorted(sources(name)) for name in removable}
    reasons: dict[str, str] = {}
    while found := {
        name: f"queue {staying[0]!r} has its dead letters there"
        for name, named in sources_of.items()
        if name not in reasons and (staying := [each for each in named if each not in sources_of or each in reasons])
    }:
        reasons |= found
    return [
        replace(stray, keep=reasons[stray.key[1]])
        if stray.key[0] == "queue" and not stray.keep and stray.key[1] in reasons
        else stray
        for stray in strays
    ]


@dataclass(frozen=True, slots=True)
class Action:
    """One change.

    Attributes:
        verb: What is done, such as "create" or "skip".
        kind: The kind of the resource.
        name: Its name.
        changes: The present and the declared value of each field that changes.
        reason: Why, where that is not obvious.
    """

    verb: Verb
    kind: str
    name: str
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes that would be made.

    Attributes:
        actions: The changes, in the order in which they are made.
        unchanged: How many resources need none.
        unverifiable: Settings that the store does not return.
        digest: Identifies exactly this plan.
    """

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
    """A setting that is not as declared.

    Attributes:
        kind: The kind of the resource.
        name: Its name.
        field: The setting; empty if the resource is gone.
        want: What is declared.
        have: What the store has; None if the resource is gone.
    """

    kind: str
    name: str
    field: str
    want: Any
    have: Any


@dataclass(frozen=True, slots=True)
class Survey:
    """A plan together with what was read to make it."""

    plan: Plan
    site: Site
    looks: Mapping[Key, Look]


def plan(topology: Topology, backend: Sited, *, prune: bool = False, code: str | None = None) -> Plan:
    """Return what `apply` with the same arguments would do now. This changes nothing.

    Args:
        topology: What the store should have.
        backend: The store.
        prune: Whether to remove what this topology made or adopted and no longer declares.
        code: The archive of the functions, `s3://bucket/key`; without it functions are skipped.

    Raises:
        TopologyError: The topology has errors; the message lists them.

    Example:
        for action in plan(topology, backend).actions:
            print(action.verb, action.kind, action.name)
    """
    return survey(topology, backend, prune=prune, code=code).plan


def drift(topology: Topology, backend: Sited) -> tuple[Drift, ...]:
    """Return every setting of the store that differs from its declaration. This changes nothing.

    Args:
        topology: What is declared.
        backend: The store.
    """
    drifts: list[Drift] = []
    for look in survey(topology, backend, prune=False, code=None).looks.values():
        if look.skip is None and look.have is None:
            drifts.append(Drift(*look.key, "", dict(look.want), None))
        elif look.skip is None:
            drifts += [Drift(*look.key, name, want, have) for name, (have, want) in look.differences.items()]
    return tuple(drifts)


def survey(topology: Topology, backend: Sited, *, prune: bool, code: str | None) -> Survey:
    """Read everything once and make the plan."""
    lint(topology)
    check(code, text("s3://[^/]+/.+", "s3://bucket/key") | None, "code", TopologyError)
    site = backend.site()
    looks = [site.look(topology, resource, code=code) for resource in ordered(topology)]
    actions = [action for look in looks if (action := _action(look)) is not None]
    unchanged = len(looks) - len(actions)
    for stray in site.strays(topology) if prune else ():
        verb: Verb = "skip" if stray.keep else "delete"
        actions.append(Action(verb, *stray.key, {}, stray.keep or "no longer declared"))
    unverifiable = tuple(f"{' '.join(look.key)}: {name}" for look in looks for name in look.unverifiable)
    document = _canonical(msgspec.to_builtins([topology.name, *actions]))
    digest = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    made = Plan(tuple(actions), unchanged, unverifiable, digest)
    return Survey(made, site, {look.key: look for look in looks})


def _action(look: Look) -> Action | None:
    if look.skip is not None:
        return Action("skip", *look.key, {}, look.skip)
    if look.have is None:
        return Action("create", *look.key, {key: (None, value) for key, value in look.want.items()})
    if look.fixed:
        reason = f"{', '.join(look.fixed)} cannot be changed in place"
        return Action("replace", *look.key, look.differences, reason)
    return Action("update", *look.key, look.differences) if look.differences else None


def _canonical(value: Any) -> Any:
    """Return the value with 60 for 60.0, so that a topology that was stored as JSON and read gives the same plan."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _canonical(each) for key, each in value.items()}
    return [_canonical(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What was done, what failed and why, and what was skipped.

    Attributes:
        applied: The changes that were made.
        failed: Those that failed, each with its error.
        skipped: Those that were left out; their `reason` says why.
    """

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
    """Make the changes that the plan lists and no others, with an audit record. Run it again to finish what failed.

    Args:
        topology: What the store should have.
        backend: The store.
        expect: The digest of the plan that was approved, by default any.
        allow_replace: Whether to replace a table whose keys changed; it must be empty.
        prune: Whether to remove what this topology made or adopted and no longer declares.
        code: The archive of the functions, `s3://bucket/key`; without it functions are skipped.
        actor: Who, for the audit record; by default `$POSTROAD_ACTOR` or the user.

    Raises:
        TopologyError: The topology has errors; the message lists them.
        PlanChanged: The plan is not the expected one; nothing was changed.
        TopologyConflict: A table would have to be replaced; nothing was changed.

    Example:
        approved = plan(topology, backend)
        result = apply(topology, backend, expect=approved.digest)
    """
    found = survey(topology, backend, prune=prune, code=code)
    if expect is not None and not hmac.compare_digest(expect.encode(), found.plan.digest.encode()):
        raise PlanChanged(f"expect: the plan is now {found.plan.digest}, not {expect}", field="expect")
    _check_replacements(found, allow_replace=allow_replace)
    if found.plan.empty:
        return ApplyResult((), (), found.plan.actions)
    actions = [action for action in found.plan.actions if action.verb != "skip"]
    detail = {
        "digest": found.plan.digest,
        "actions": [f"{action.verb} {action.kind} {action.name}" for action in actions],
    }
    with recorded(backend.audit_log(), "topology.apply", topology.name, detail, actor=actor) as done:
        done["digest"] = found.plan.digest
        result = _carry_out(topology, found, actions)
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
                remedy="Allow the replacement with --allow-replace; nothing was changed.",
            )
        if found.site.holds_items(found.looks[action.kind, action.name].resource):
            raise TopologyConflict(
                f"{action.kind} {action.name!r}: {fields} cannot be changed while it holds an item",
                field=fields,
                remedy="Copy the items to a table of another name; nothing was changed.",
            )


def _carry_out(topology: Topology, found: Survey, actions: Sequence[Action]) -> ApplyResult:
    applied: list[Action] = []
    failed: dict[Key, tuple[Action, str]] = {}
    for action in actions:
        resource = topology.find(action.kind, action.name)
        required = () if resource is None else needs(topology, resource)
        blocking = next((key for key in required if key in failed), None)
        key = action.kind, action.name
        if blocking is not None:
            failed[key] = (action, f"not tried: {' '.join(blocking)} failed")
            continue
        try:
            if action.verb in ("delete", "replace"):
                found.site.delete(key)
            if action.verb in ("create", "replace"):
                found.site.create(found.looks[key])
            elif action.verb == "update":
                found.site.update(found.looks[key], tuple(action.changes))
        except PostroadError as error:
            failed[key] = (action, str(error))
            continue
        failpoints.hit("topology.apply.mid")
        applied.append(action)
    skipped = tuple(action for action in found.plan.actions if action.verb == "skip")
    return ApplyResult(tuple(applied), tuple(failed.values()), skipped)
