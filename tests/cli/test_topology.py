"""`postroad topology` on the embedded engine."""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import Postroad, program

from postroad.wiring import connect

CHAT = ("chat", "--project", "rtchat", "--env", "prod")


def test_a_plan_is_told_and_changes_nothing(postroad: Postroad) -> None:
    plan = postroad("topology", "plan", *CHAT, "--json")

    assert plan.code == 0
    assert plan.document.keys() == {"digest", "actions", "unchanged", "unverifiable"}
    assert all(action.keys() == {"verb", "kind", "name", "changes", "reason"} for action in plan.document["actions"])
    assert [action["verb"] for action in plan.document["actions"]].count("create") == 5
    assert not Path("postroad.db").exists()


def test_a_plan_for_people_ends_with_its_digest(postroad: Postroad) -> None:
    out = postroad("topology", "plan", *CHAT).out.splitlines()

    assert out[0].split() == ["create", "queue", "rtchat-prod-push-dlq"]
    assert out[-1].startswith("digest ")


def test_apply_makes_what_was_planned_and_is_audited(postroad: Postroad) -> None:
    digest = postroad("topology", "plan", *CHAT, "--json").document["digest"]

    done = postroad("topology", "apply", *CHAT, "--yes", "--expect", digest, "--json")
    again = postroad("topology", "apply", *CHAT, "--yes", "--json")

    assert done.code == again.code == 0
    assert (len(done.document["applied"]), done.document["failed"]) == (5, [])
    assert again.document["applied"] == []
    actions = [item["action"] for item in postroad("audit", "list", "--json").document["items"]]
    assert actions == ["topology.apply.start", "topology.apply.end"]


def test_apply_in_a_pipe_needs_yes(postroad: Postroad) -> None:
    done = postroad("topology", "apply", *CHAT)

    assert done.code == 2
    assert "--yes" in done.err
    assert postroad("queue", "list", "--json").document == {"items": []}


def test_a_stale_digest_is_exit_1(postroad: Postroad) -> None:
    done = postroad("topology", "apply", *CHAT, "--yes", "--expect", "0" * 64, "--json")

    assert done.code == 1
    assert done.problem["type"] == "/errors/plan-changed"
    assert postroad("queue", "list", "--json").document == {"items": []}


def test_an_audit_file_that_cannot_be_written_stops_apply(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", "missing/audit.jsonl")

    done = postroad("topology", "apply", *CHAT, "--yes")

    assert done.code == 2
    assert postroad("queue", "list", "--json").document == {"items": []}


def test_a_failure_is_exit_1_and_named(postroad: Postroad, tmp_path: Path) -> None:
    with connect("sqlite:///postroad.db") as backend:
        backend.stream("clicks", shards=4)
    Path("topology.json").write_text(
        json.dumps({"name": "shop", "resources": [{"kind": "stream", "name": "clicks", "shards": 1}]})
    )

    done = postroad("topology", "apply", "--file", "topology.json", "--yes", "--json")

    assert done.code == 1
    [failed] = done.document["failed"]
    assert failed["name"] == "clicks"
    assert "4 shards" in failed["error"]


def test_drift_is_exit_1(postroad: Postroad) -> None:
    postroad("topology", "apply", *CHAT, "--yes")
    clean = postroad("topology", "drift", *CHAT, "--json")
    with connect("sqlite:///postroad.db") as backend:
        backend.delete_queue("rtchat-prod-push-queue")

    found = postroad("topology", "drift", *CHAT, "--json")

    assert (clean.code, clean.document) == (0, {"items": []})
    assert found.code == 1
    [item] = found.document["items"]
    assert (item["kind"], item["name"], item["field"], item["have"]) == ("queue", "rtchat-prod-push-queue", "", None)


def test_an_alarm_is_exit_1(postroad: Postroad) -> None:
    postroad("topology", "apply", *CHAT, "--yes")
    quiet = postroad("topology", "alarms", *CHAT, "--json")
    postroad("queue", "send", "rtchat-prod-push-dlq", "--body", "dead")

    loud = postroad("topology", "alarms", *CHAT, "--json")

    assert quiet.code == 0
    assert loud.code == 1
    assert {item["name"] for item in loud.document["items"] if item["state"] == "alarm"} == {"rtchat-prod-sqs-push-dlq"}
    assert all(item.keys() == {"name", "state", "value", "threshold"} for item in loud.document["items"])


def test_a_rendered_file_is_read_back(postroad: Postroad) -> None:
    Path("topology.json").write_text(postroad("topology", "render", "transfers", "--format", "json").out)

    plan = postroad("topology", "plan", "--file", "topology.json", "--json")

    assert plan.document == postroad("topology", "plan", "transfers", "--json").document


def test_cloudformation_and_iam_are_rendered(postroad: Postroad) -> None:
    template = postroad("topology", "render", "tasks", "--stage", "dev", "--json").document
    policies = postroad(
        "topology", "render", "transfers", "--format", "iam", "--region", "eu-west-1", "--account", "123456789012"
    )

    assert "DevTasksQueue" in template["Resources"]
    assert json.loads(policies.out).keys() == {"producer", "gateway-usdc", "ledger-postings", "projections-timeline"}


def test_the_stage_of_tasks_is_that_of_the_settings(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_STAGE", "live")

    document = postroad("topology", "render", "tasks", "--format", "json", "--json").document

    assert document["name"] == "live-tasks"


@pytest.mark.parametrize("format", ["json", "cloudformation", "iam --region eu-west-1 --account 123456789012"])
def test_what_lint_calls_an_error_is_rendered_in_no_format(postroad: Postroad, format: str) -> None:
    Path("wrong.json").write_text('{"name": "t", "resources": [], "components": [{"name": "c", "sends": ["q"]}]}')

    done = postroad("topology", "render", "--file", "wrong.json", "--format", *format.split())

    assert (done.code, done.out) == (2, "")
    assert "unknown-reference" in done.err


@pytest.mark.parametrize(
    "args",
    [
        "plan",
        "plan chta",
        "plan chat",
        "plan chat --project rtchat",
        "plan chat --project rt.chat --env prod",
        "plan chat --file x.json --project a --env b",
        "plan --file missing.json",
        "plan --file broken.json",
        "plan --file unknown.json",
        "apply transfers --yes --code nowhere",
        "render transfers --format iam",
        "render transfers --format iam --account 123456789012",
        "render transfers --format iam --region eu-west-1 --account 12",
        "render transfers --format yaml",
        "plan tasks --stage=",
    ],
)
def test_what_names_no_topology_is_exit_2(postroad: Postroad, args: str) -> None:
    Path("broken.json").write_text("[" * 10_000)
    Path("unknown.json").write_text('{"name": "t", "resources": [{"kind": "quue"}]}')

    done = postroad("topology", *args.split())

    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")


def test_an_unknown_kind_is_answered_with_the_nearest(postroad: Postroad) -> None:
    Path("unknown.json").write_text('{"name": "t", "resources": [{"kind": "quue"}]}')

    done = postroad("topology", "plan", "--file", "unknown.json")

    assert "$.resources[0].kind" in done.err
    assert 'did you mean "queue"?' in done.err


@pytest.mark.slow
def test_an_apply_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    killed = program("topology", "apply", *CHAT, "--yes", env={"POSTROAD_FAILPOINTS": "topology.apply.mid=kill9#2"})

    done = program("topology", "apply", *CHAT, "--yes", "--json")

    assert killed.returncode == -9
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["applied"]) == 3
    assert json.loads(program("topology", "plan", *CHAT, "--json").stdout)["unchanged"] == 5
    assert json.loads(program("audit", "verify", "--json").stdout)["ok"] is True


OWN = """
from postroad import QueueSpec, Topology
from postroad.topology import QueueDecl

def shop(stage: str = "dev") -> Topology:
    dead = QueueDecl(QueueSpec(f"{stage}-orders-dlq", retention=1_209_600))
    orders = QueueDecl(QueueSpec(f"{stage}-orders", dead_letter=f"{stage}-orders-dlq"))
    return Topology(f"{stage}-shop", (dead, orders))

live = shop("live")
nothing = 7

def fails() -> Topology:
    raise ValueError("no stage")

def needs(stage: str) -> Topology:
    return shop(stage)
"""


@pytest.fixture
def own_module() -> Iterator[str]:
    name = f"own_topology_{uuid.uuid4().hex}"
    Path(f"{name}.py").write_text(OWN)
    yield name
    sys.modules.pop(name, None)


def test_a_topology_of_python_is_planned_applied_and_drift_free(postroad: Postroad, own_module: str) -> None:
    planned = postroad("topology", "plan", "--load", f"{own_module}:live", "--json")
    applied = postroad("topology", "apply", "--load", f"{own_module}:live", "--yes", "--json")
    again = postroad("topology", "apply", "--load", f"{own_module}:shop", "--yes", "--json")
    drift = postroad("topology", "drift", "--load", f"{own_module}:live", "--json")
    rendered = postroad("topology", "render", "--load", f"{own_module}:live", "--format", "json", "--json")

    assert [action["name"] for action in planned.document["actions"]] == ["live-orders-dlq", "live-orders"]
    assert len(applied.document["applied"]) == len(again.document["applied"]) == 2
    assert (drift.code, drift.document) == (0, {"items": []})
    assert rendered.document["name"] == "live-shop"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "is not MODULE:NAME"),
        (":nothing", "is int, not a Topology"),
        (":lives", "has no 'lives'"),
        (":fails", "ValueError: no stage"),
        (":needs", "needs() missing"),
    ],
)
def test_what_is_no_topology_of_python_is_exit_2_and_named(
    postroad: Postroad, own_module: str, name: str, text: str
) -> None:
    refused = postroad("topology", "apply", "--load", f"{own_module}{name}", "--yes")

    assert (refused.code, text in refused.err) == (2, True), refused.err
    assert not Path("postroad.db").exists()


def test_a_module_that_cannot_be_imported_is_exit_2_and_named(postroad: Postroad) -> None:
    refused = postroad("topology", "plan", "--load", "no_such_module:live")

    assert refused.code == 2
    assert "no_such_module" in refused.err


@pytest.mark.parametrize("more", [("chat",), ("--file", "x.json")])
def test_a_topology_is_named_in_one_way_only(postroad: Postroad, more: tuple[str, ...]) -> None:
    assert postroad("topology", "plan", "--load", "a:b", *more).code == 2


def test_the_topology_of_the_documentation_is_complete(postroad: Postroad) -> None:
    page = (Path(__file__).parents[2] / "docs" / "topology.md").read_text()
    (block,) = re.findall(r'^```python title="shop_topology.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    Path("shop_topology.py").write_text(block)
    lines = [line for line in page.splitlines() if line.startswith("postroad topology ") and "--load" in line]

    try:
        outcomes = [postroad(*line.split()[1:]) for line in lines]
    finally:
        sys.modules.pop("shop_topology", None)

    assert [outcome.code for outcome in outcomes] == [0, 0, 0, 0], [outcome.err for outcome in outcomes]
    assert "warning" not in "".join(outcome.err for outcome in outcomes)
