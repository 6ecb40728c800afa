"""`postroad topology plan|apply|drift|render|alarms`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.output import ANSWER_IS_NO, confirm_yes, write
from postroad.errors import InvalidInput

if TYPE_CHECKING:
    from postroad.topology import Action, AlarmState, Drift, Plan, Topology

Template = Annotated[
    Literal["chat", "transfers", "agents", "bus", "tasks"] | None,
    typer.Argument(metavar="TEMPLATE", help="chat, transfers, agents, bus or tasks; or --file."),
]
Project = Annotated[str | None, typer.Option(metavar="P", help="chat: the project.")]
Env = Annotated[str | None, typer.Option(metavar="E", help="chat: the environment.")]
Prefix = Annotated[str, typer.Option(metavar="P", help="transfers, agents, bus: stands before each name.")]
Stage = Annotated[str | None, typer.Option(metavar="S", help="tasks: the stage; that of the settings if not given.")]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="A topology as `render --format json` writes it.")]
Code = Annotated[str | None, typer.Option(metavar="S3URL", help="The functions' archive, s3://bucket/key.")]
Prune = Annotated[bool, typer.Option("--prune", help="Remove what this topology made and no longer declares.")]


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad topology`."""
    add_verb(app, "plan", plan, example="postroad topology plan chat --project rtchat --env prod")
    add_verb(app, "apply", apply, example="postroad topology apply transfers --yes", destructive=True)
    add_verb(app, "drift", drift, example="postroad topology drift --file topology.json")
    add_verb(app, "render", render, example="postroad topology render tasks --stage dev --format cloudformation")
    add_verb(app, "alarms", alarms, example="postroad topology alarms chat --project rtchat --env prod")


def plan(
    call: Call,
    template: Template = None,
    project: Project = None,
    env: Env = None,
    prefix: Prefix = "",
    stage: Stage = None,
    file: File = None,
    code: Code = None,
    prune: Prune = False,
) -> None:
    """Say what apply would do; change nothing."""
    from postroad.topology import plan as draw_up

    topology = _topology(call, template, project, env, prefix, stage, file)
    with call.backend_or_empty() as backend:
        found = draw_up(topology, backend, code=code, prune=prune)
    call.show(_plan_document(found), *_plan_lines(found))


def apply(
    call: Call,
    template: Template = None,
    project: Project = None,
    env: Env = None,
    prefix: Prefix = "",
    stage: Stage = None,
    file: File = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    expect: Annotated[str | None, typer.Option(metavar="DIGEST", help="Only if the plan is still this one.")] = None,
    allow_replace: Annotated[
        bool, typer.Option("--allow-replace", help="Replace empty tables whose keys differ.")
    ] = False,
    prune: Prune = False,
    code: Code = None,
) -> None:
    """Make the store what the topology says."""
    from postroad.topology import apply as carry_out, plan as draw_up

    topology = _topology(call, template, project, env, prefix, stage, file)
    options: dict[str, Any] = {"code": code, "prune": prune}
    with call.backend() as backend:

        def effect() -> str:
            return "does this: " + "; ".join(_lines(draw_up(topology, backend, **options).actions))

        confirm_yes(yes, f'applying topology "{topology.name}"', effect)
        result = carry_out(topology, backend, expect=expect, allow_replace=allow_replace, **options)
    document = {
        "applied": [_action(action) for action in result.applied],
        "failed": [{**_action(action), "error": why} for action, why in result.failed],
        "skipped": [_action(action) for action in result.skipped],
    }
    failures = [f"failed: {action.kind} {action.name}: {why}" for action, why in result.failed]
    done = [f"{len(result.applied)} applied, {len(result.failed)} failed, {len(result.skipped)} skipped"]
    call.show(document, *_lines(result.applied), *failures, *done)
    if result.failed:
        raise typer.Exit(ANSWER_IS_NO)


def drift(
    call: Call,
    template: Template = None,
    project: Project = None,
    env: Env = None,
    prefix: Prefix = "",
    stage: Stage = None,
    file: File = None,
) -> None:
    """Name every setting that is not as declared; exit 1 if there is one."""
    from postroad.topology import drift as look

    topology = _topology(call, template, project, env, prefix, stage, file)
    with call.backend_or_empty() as backend:
        found = look(topology, backend)
    items = [{"kind": d.kind, "name": d.name, "field": d.field, "want": d.want, "have": d.have} for d in found]
    call.show({"items": items}, *([_drift_line(each) for each in found] or ["no drift"]))
    if found:
        raise typer.Exit(ANSWER_IS_NO)


def render(
    call: Call,
    template: Template = None,
    project: Project = None,
    env: Env = None,
    prefix: Prefix = "",
    stage: Stage = None,
    file: File = None,
    format: Annotated[
        Literal["cloudformation", "iam", "json"], typer.Option(metavar="FORMAT", help="cloudformation, iam or json.")
    ] = "cloudformation",
    region: Annotated[str | None, typer.Option(metavar="R", help="iam: the region.")] = None,
    account: Annotated[str | None, typer.Option(metavar="A", help="iam: the account's 12 digits.")] = None,
) -> None:
    """Print the topology as a CloudFormation template, as one IAM policy for each component, or as JSON."""
    topology = _topology(call, template, project, env, prefix, stage, file)
    document = _rendered(topology, format, region, account)
    call.show(document, json.dumps(document, indent=2))


def alarms(
    call: Call,
    template: Template = None,
    project: Project = None,
    env: Env = None,
    prefix: Prefix = "",
    stage: Stage = None,
    file: File = None,
) -> None:
    """Judge every alarm by what the store tells now; exit 1 if one is an alarm."""
    from postroad.topology import evaluate_alarms

    topology = _topology(call, template, project, env, prefix, stage, file)
    with call.backend() as backend:
        states = evaluate_alarms(topology, backend)
    items = [{"name": s.name, "state": s.state, "value": s.value, "threshold": s.threshold} for s in states]
    call.show({"items": items}, *([_alarm_line(state) for state in states] or ["no alarms"]))
    if any(state.state == "alarm" for state in states):
        raise typer.Exit(ANSWER_IS_NO)


def _topology(
    call: Call,
    template: str | None,
    project: str | None,
    env: str | None,
    prefix: str,
    stage: str | None,
    file: Path | None,
) -> Topology:
    """The topology that the arguments name; lint's warnings go to stderr."""
    from postroad.topology import lint

    if (template is None) is (file is None):
        raise InvalidInput(
            "template: give either a TEMPLATE or --file",
            field="template",
            remedy="The templates are chat, transfers, agents, bus and tasks.",
        )
    if file is not None:
        topology = _read(file)
    else:
        topology = _made(str(template), project, env, prefix, call.settings().stage if stage is None else stage)
    for finding in lint(topology):
        if finding.severity == "warning":
            write(f"warning: {finding.code}: {finding.message}", sys.stderr)
    return topology


def _made(template: str, project: str | None, env: str | None, prefix: str, stage: str) -> Topology:
    from postroad import topology

    if template == "chat":
        if project is None or env is None:
            missing = "project" if project is None else "env"
            raise InvalidInput(f"{missing}: chat needs --project and --env", field=missing)
        return topology.chat_topology(project, env)
    if template == "tasks":
        return topology.task_topology(stage)
    made = {
        "transfers": topology.transfers_topology,
        "agents": topology.agents_topology,
        "bus": topology.bus_topology,
    }
    return made[template](prefix)


def _read(file: Path) -> Topology:
    from postroad.topology import Topology

    try:
        return Topology.from_json(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"file: {file} cannot be read: {error.strerror}", field="file") from error


def _rendered(topology: Topology, format: str, region: str | None, account: str | None) -> Any:
    from postroad.topology import iam_policy, render_cloudformation
    from postroad.topology.lint import check

    if format == "json":
        check(topology)
        return json.loads(topology.to_json())
    if format == "cloudformation":
        return render_cloudformation(topology)
    if region is None or account is None:
        missing = "region" if region is None else "account"
        raise InvalidInput(
            f"{missing}: policies need --region and --account",
            field=missing,
            remedy="Name the region, and the account by its 12 digits.",
        )
    return {
        component.name: iam_policy(topology, component.name, region=region, account=account)
        for component in topology.components
    }


def _plan_document(found: Plan) -> dict[str, Any]:
    return {
        "digest": found.digest,
        "actions": [_action(action) for action in found.actions],
        "unchanged": found.unchanged,
        "unverifiable": list(found.unverifiable),
    }


def _action(action: Action) -> dict[str, Any]:
    changes = {field: list(pair) for field, pair in action.changes.items()}
    return {"verb": action.verb, "kind": action.kind, "name": action.name, "changes": changes, "reason": action.reason}


def _plan_lines(found: Plan) -> Iterator[str]:
    yield from _lines(found.actions)
    yield from (f"cannot be verified here: {each}" for each in found.unverifiable)
    yield f"{found.unchanged} unchanged"
    yield f"digest {found.digest}"


def _lines(actions: Any) -> Iterator[str]:
    for action in actions:
        fields = (
            ""
            if action.verb == "create"
            else ", ".join(
                f"{field}: {json.dumps(have, default=str)} -> {json.dumps(want, default=str)}"
                for field, (have, want) in action.changes.items()
            )
        )
        said = " ".join(filter(None, (f"({action.reason})" if action.reason else "", fields)))
        yield f"{action.verb:<8} {action.kind:<12} {action.name}  {said}".rstrip()


def _drift_line(each: Drift) -> str:
    if not each.field:
        return f"{each.kind} {each.name}: is gone"
    have, want = json.dumps(each.have, default=str), json.dumps(each.want, default=str)
    return f"{each.kind} {each.name}: {each.field} is {have}, not {want}"


def _alarm_line(state: AlarmState) -> str:
    value = "-" if state.value is None else f"{state.value:g}"
    return f"{state.state:<8} {state.name}  {value} (threshold {state.threshold:g})"
