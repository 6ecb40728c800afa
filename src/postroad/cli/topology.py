"""`postroad topology plan|apply|drift|render|alarms`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from postroad.cli.call import Call, verb
from postroad.cli.output import confirm_yes, write
from postroad.cli.packages import topology, up_runners
from postroad.cli.parameters import Yes, argument, flag, option, read_file
from postroad.errors import ConfigurationError, InvalidInput, PostroadError
from postroad.settings import nearest


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """The options that name a topology: a template with its parameters, a file, or an object of Python."""

    template: Annotated[
        Literal["chat", "transfers", "agents", "bus", "tasks"] | None,
        argument("TEMPLATE", "One of chat, transfers, agents, bus and tasks; or --file, --load."),
    ] = None
    project: Annotated[str | None, option("P", "The project of chat.")] = None
    env: Annotated[str | None, option("E", "The environment of chat.")] = None
    prefix: Annotated[str, option("P", "A prefix of each name of transfers, agents and bus.")] = ""
    stage: Annotated[str | None, option("S", "The stage of tasks; by default that of the settings.")] = None
    file: Annotated[Path | None, option("FILE", "A topology as `render --format json` writes it.")] = None

    load_: Annotated[
        str | None, option("MODULE:NAME", "A topology, or a function that returns one, in Python.", "--load")
    ] = None

    def load(self, call: Call) -> topology.Topology:
        """Return the topology that the options name; print the warnings of lint on stderr."""
        if [self.template, self.file, self.load_].count(None) != 2:
            raise InvalidInput(
                "template: give one of TEMPLATE, --file and --load",
                field="template",
                remedy="The templates are chat, transfers, agents, bus and tasks.",
            )
        if self.file is not None:
            wanted = topology.Topology.from_json(read_file(str(self.file), "file"))
        elif self.load_ is not None:
            wanted = _loaded(self.load_)
        else:
            wanted = self._from_template(call)
        for finding in topology.lint(wanted):
            if finding.severity == "warning":
                write(f"warning: {finding.code}: {finding.message}", sys.stderr)
        return wanted

    def _from_template(self, call: Call) -> topology.Topology:
        if self.template == "chat":
            if self.project is None or self.env is None:
                missing = "project" if self.project is None else "env"
                raise InvalidInput(f"{missing}: chat needs --project and --env", field=missing)
            return topology.chat_topology(self.project, self.env)
        if self.template == "tasks":
            return topology.task_topology(call.settings().stage if self.stage is None else self.stage)
        makers = {"bus": topology.bus_topology, "transfers": topology.transfers_topology}
        return makers.get(str(self.template), topology.agents_topology)(self.prefix)


def _loaded(target: str) -> topology.Topology:
    """Return the topology `NAME` of `MODULE`, or what the function of that name returns."""
    module_name, _, name = target.partition(":")
    if not (module_name and name):
        raise _not_loaded(f"{target!r} is not MODULE:NAME")
    up_runners.load_modules([module_name])
    module = vars(sys.modules[module_name])
    if name not in module:
        raise _not_loaded(f"module {module_name!r} has no {name!r}", nearest=nearest(name, list(module)))
    found = module[name]
    if callable(found) and not isinstance(found, topology.Topology):
        try:
            found = found()
        except PostroadError:
            raise
        except Exception as error:
            raise _not_loaded(f"{target} failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, topology.Topology):
        raise _not_loaded(f"{target} is {type(found).__name__}, not a Topology")
    return found


def _not_loaded(why: str, nearest: str | None = None) -> ConfigurationError:
    remedy = "Name a Topology at the top of a module, or a function without arguments that returns one."
    return ConfigurationError(f"load: {why}", field="load", nearest=nearest, remedy=remedy)


_KEYS = ("keys", "indexes")
Code = Annotated[str | None, option("S3URL", "The archive of the functions, s3://bucket/key.")]
Prune = Annotated[bool, flag("--prune", "Delete what this topology created and no longer declares.")]


@verb("topology plan", "chat --project rtchat --env prod")
def plan(call: Call, chosen: TopologyOptions, code: Code = None, prune: Prune = False) -> None:
    """Show what apply would do; change nothing."""
    wanted = chosen.load(call)
    with call.backend(or_empty=True) as backend:
        found = topology.plan(wanted, backend, code=code, prune=prune)
    document = {
        "digest": found.digest,
        "actions": found.actions,
        "unchanged": found.unchanged,
        "unverifiable": found.unverifiable,
    }
    unverifiable = (f"cannot be verified here: {each}" for each in found.unverifiable)
    end = [f"{found.unchanged} unchanged", f"digest {found.digest}"]
    call.show(document, *_lines(found.actions), *unverifiable, *end)


@verb("topology apply", "transfers --yes", destructive=True)
def apply(
    call: Call,
    chosen: TopologyOptions,
    yes: Yes = False,
    expect: Annotated[str | None, option("DIGEST", "Apply only if the plan still has this digest.")] = None,
    allow_replace: Annotated[bool, flag("--allow-replace", "Replace empty tables whose keys differ.")] = False,
    prune: Prune = False,
    code: Code = None,
) -> None:
    """Create and change resources until they match the topology."""
    wanted = chosen.load(call)
    options: dict[str, Any] = {"code": code, "prune": prune}
    with call.backend() as backend:

        def effect() -> str:
            return "does this: " + "; ".join(_lines(topology.plan(wanted, backend, **options).actions))

        confirm_yes(yes, f'applying topology "{wanted.name}"', effect)
        with call.working(f"applying {wanted.name}"):
            result = topology.apply(wanted, backend, expect=expect, allow_replace=allow_replace, **options)
    document = {
        "applied": result.applied,
        "failed": [{**asdict(action), "error": why} for action, why in result.failed],
        "skipped": result.skipped,
    }
    failures = [f"failed: {action.kind} {action.name}: {why}" for action, why in result.failed]
    done = [f"{len(result.applied)} applied, {len(result.failed)} failed, {len(result.skipped)} skipped"]
    call.show(document, *_lines(result.applied), *failures, *done, ok=not result.failed)


@verb("topology drift", "--file topology.json")
def drift(call: Call, chosen: TopologyOptions) -> None:
    """List every setting that differs from the topology; exit 1 if there is one."""
    wanted = chosen.load(call)
    with call.backend(or_empty=True) as backend:
        found = topology.drift(wanted, backend)
    call.show({"items": found}, *([_drift_line(each) for each in found] or ["no drift"]), ok=not found)


@verb("topology render", "tasks --stage dev --format cloudformation")
def render(
    call: Call,
    chosen: TopologyOptions,
    format: Annotated[Literal["cloudformation", "iam", "json"], option("FORMAT", "What to print.")] = "cloudformation",
    region: Annotated[str | None, option("R", "The region of the policies.")] = None,
    account: Annotated[str | None, option("A", "The 12 digits of the policies' account.")] = None,
) -> None:
    """Print the topology as a CloudFormation template, as one IAM policy per component, or as JSON."""
    wanted = chosen.load(call)
    if format == "json":
        from postroad.topology.lint import check

        check(wanted)
        document = json.loads(wanted.to_json())
    elif format == "cloudformation":
        document = topology.render_cloudformation(wanted)
    elif region is None or account is None:
        missing = "region" if region is None else "account"
        raise InvalidInput(
            f"{missing}: policies need --region and --account",
            field=missing,
            remedy="Name the region, and the account by its 12 digits.",
        )
    else:
        names = [component.name for component in wanted.components]
        document = {name: topology.iam_policy(wanted, name, region=region, account=account) for name in names}
    call.show(document, json.dumps(document, indent=2))


@verb("topology alarms", "chat --project rtchat --env prod")
def alarms(call: Call, chosen: TopologyOptions) -> None:
    """Evaluate every alarm now; exit 1 if one is in alarm."""
    wanted = chosen.load(call)
    with call.backend() as backend:
        states = topology.evaluate_alarms(wanted, backend)
    lines = [
        f"{s.state:<8} {s.name}  {'-' if s.value is None else f'{s.value:g}'} (threshold {s.threshold:g})"
        for s in states
    ]
    call.show({"items": states}, *(lines or ["no alarms"]), ok=all(state.state != "alarm" for state in states))


def _lines(actions: Any) -> Iterator[str]:
    for action in actions:
        details = [f"({action.reason})"] if action.reason else []
        if action.verb != "create":
            details.append(", ".join(_change(name, have, want) for name, (have, want) in action.changes.items()))
        yield f"{action.verb:<8} {action.kind:<12} {action.name}  {' '.join(filter(None, details))}".rstrip()


def _change(name: str, have: Any, want: Any) -> str:
    # The names of a table's keys are for programs; --json has them.
    return f"other {name}" if name in _KEYS else f"{name}: {_json(have)} -> {_json(want)}"


def _json(value: Any) -> str:
    return json.dumps(value, default=str)


def _drift_line(each: topology.Drift) -> str:
    if not each.field:
        return f"{each.kind} {each.name}: does not exist"
    if each.field in _KEYS:
        return f"{each.kind} {each.name}: has other {each.field}"
    return f"{each.kind} {each.name}: {each.field} is {_json(each.have)}, not {_json(each.want)}"
