"""Carrying out a plan, each step by itself, so that a failure stops only what depends on it."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from postroad import failpoints
from postroad.errors import PlanChanged, PostroadError, TopologyConflict
from postroad.telemetry import get_logger
from postroad.topology.planning import Action, Survey, survey
from postroad.topology.references import Key, needs
from postroad.topology.site import Auditor, Look, Sited
from postroad.topology.topology import Topology


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
    log = backend.audit_log()
    _record(log, "topology.apply.start", topology, {"digest": found.plan.digest, "actions": _told(found)}, actor)
    result = _carry_out(topology, found)
    counts = {"applied": len(result.applied), "failed": len(result.failed), "skipped": len(result.skipped)}
    get_logger("topology").info("topology_applied", topology=topology.name, digest=found.plan.digest, **counts)
    _record(log, "topology.apply.end", topology, {"digest": found.plan.digest, **counts}, actor)
    return result


def _check_replacements(found: Survey, *, allow_replace: bool) -> None:
    for action in found.plan.actions:
        if action.verb != "replace":
            continue
        fields = ", ".join(found.looks[action.kind, action.name].fixed)
        if not allow_replace:
            raise TopologyConflict(
                f"{action.kind} {action.name!r}: {fields} cannot be changed in place", field=fields,
                remedy="Allow the replacement (allow_replace, --allow-replace); nothing was changed.",
            )  # fmt: skip
        if found.site.holds_items(found.looks[action.kind, action.name].resource):
            raise TopologyConflict(
                f"{action.kind} {action.name!r}: {fields} cannot be changed while it holds an item", field=fields,
                remedy="Copy the items to a table of another name; nothing was changed.",
            )  # fmt: skip


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


def _record(log: Auditor | None, action: str, topology: Topology, detail: dict[str, Any], actor: str | None) -> None:
    if log is not None:
        log.append(action, topology.name, detail, actor=actor)
