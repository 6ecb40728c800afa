"""The demo: five scenes, a failure that people repair, and a check at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.up.conftest import StartUp
from tests.up.up import POSTROAD, Up, is_alive, run
from tests.waiting import eventually

from postroad import QueueSpec, connect
from postroad.operations import failure_groups
from postroad.up.demo.story import demo_database

pytestmark = pytest.mark.slow
SCENES = ["bus", "outbox", "tasks", "agents", "notifications"]
LEDGER = ("lost", "duplicated_effects", "ledger_sum")


def postroad(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder."""
    return subprocess.run([*POSTROAD, *args], capture_output=True, text=True, cwd=folder, check=False, timeout=240)


def post(up: Up, path: str) -> httpx.Response:
    """Post without a body, as the admin."""
    return httpx.post(up.ready["url"] + path, headers={"Authorization": f"Bearer {up.ready['token']}"}, timeout=20)


def failure(up: Up) -> dict[str, Any]:
    """The failure of `GET /demo`."""
    found: dict[str, Any] = up.get("/demo").json()["failure"]
    return found


def test_the_whole_story_plays_by_itself_and_nothing_is_lost_or_made_twice(tmp_path: Path) -> None:
    answer = postroad(tmp_path, "demo", "--once", "--seconds", "6", "--json")

    assert answer.returncode == 0, answer
    document = json.loads(answer.stdout)
    assert list(document) == [
        *("scenes", "published", "handled", "dead_lettered", "redriven"),
        *("lost", "duplicated_effects", "ledger_sum", "seconds"),
    ]
    assert [document[name] for name in LEDGER] == [0, 0, "0"]
    assert document["scenes"] == 5
    assert document["handled"] == document["published"] > 40
    assert document["redriven"] == document["dead_lettered"] > 0
    assert answer.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_the_whole_story_needs_nothing_that_an_extra_installs(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for name in ('litestar', 'uvicorn', 'jinja2', 'boto3', 'psycopg', 'httpx'):\n"
        "    sys.modules[name] = None\n"
        "from postroad.cli.app import run\n"
        "sys.exit(run(['demo', '--once', '--seconds', '1']))\n"
    )

    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=240
    )

    assert answer.returncode == 0, answer
    assert "0 lost, 0 effects made twice, ledger sum 0" in answer.stdout
    assert len(answer.stderr.splitlines()) == 3


@pytest.mark.long
def test_people_watch_a_failure_repair_it_and_redrive(start_up: StartUp, tmp_path: Path) -> None:
    up = start_up("--demo", TMPDIR=str(tmp_path))
    url = f"sqlite:///{tmp_path}/data.db"

    begun = up.get("/demo").json()
    eventually(lambda: all(each["handled"] >= 5 for each in up.get("/demo").json()["scenes"]))
    eventually(lambda: failure(up)["dead_letters"] >= 2)
    with connect(url) as backend:
        groups = failure_groups(backend, "demo-push-dlq").groups
    failing = failure(up)
    repaired = postroad(tmp_path, "demo", "repair", "--json", "--url", url)
    redriven = postroad(tmp_path, "queue", "redrive", "demo-push-dlq", "--yes", "--reason", "repaired", "--url", url)
    eventually(lambda: failure(up)["state"] == "redriven")
    code, _ = up.stop()

    assert [each["name"] for each in begun["scenes"]] == SCENES
    assert {each["state"] for each in begun["scenes"]} == {"running"}
    assert begun["failure"] == {"state": "healthy", "queue": "demo-push-queue", "dead_letters": 0}
    assert failing["state"] == "failing"
    assert len(groups) == 1
    assert repaired.returncode == 0, repaired
    assert json.loads(repaired.stdout)["state"] == "repaired"
    assert redriven.returncode == 0, redriven
    assert code == 0


@pytest.mark.long
def test_scenes_that_are_killed_go_on_and_lose_nothing(start_up: StartUp, tmp_path: Path) -> None:
    up = start_up("--demo", TMPDIR=str(tmp_path))
    eventually(lambda: sum(each["handled"] for each in up.get("/demo").json()["scenes"]) > 30)

    for name in ("demo", "worker"):
        os.kill(up.parts()[name]["pid"], signal.SIGKILL)
    eventually(lambda: up.parts()["demo"]["restarts"] == 1 and up.get("/ready").status_code == 200)
    with closing(demo_database(f"sqlite:///{tmp_path}/data.db")) as database:
        open_before = {(scene, id) for scene in SCENES for id in database.open_events(scene)}
        # While the push provider refuses, what it refused waits in the dead letters.
        eventually(lambda: post(up, "/demo/repair").json()["failure"]["state"] != "healthy", every=0.5)
        answer = postroad(
            tmp_path, "queue", "redrive", "demo-push-dlq", "--yes", "--url", f"sqlite:///{tmp_path}/data.db"
        )
        eventually(lambda: not open_before & {(scene, id) for scene in SCENES for id in database.open_events(scene)})
        ledger_sum = database.check().ledger_sum

    assert answer.returncode == 0, answer
    assert ledger_sum == 0


def test_nobody_is_left_when_the_supervisor_of_a_demo_is_killed(start_up: StartUp, tmp_path: Path) -> None:
    up = start_up("--demo", TMPDIR=str(tmp_path))
    pids = up.pids()

    up.process.kill()

    eventually(lambda: not [pid for pid in pids if is_alive(pid)])


def test_the_repair_over_http_is_recorded_and_needs_a_demo(start_up: StartUp, tmp_path: Path) -> None:
    up = start_up("--demo", TMPDIR=str(tmp_path))

    answer = post(up, "/demo/repair")
    with httpx.Client(base_url=up.ready["url"], timeout=20) as browser:
        browser.post("/login", data={"token": up.ready["token"]})
        found = re.search(r'name="csrf-token" content="([^"]+)"', browser.get("/ui/queues").text)
        assert found is not None
        by_form = browser.post("/ui/demo/repair", data={"csrf_token": found[1]})
        forged = browser.post("/ui/demo/repair", data={"csrf_token": "forged"})
    audit = (tmp_path / "postroad-audit.jsonl").read_text()

    assert (answer.status_code, answer.json()["failure"]["state"]) == (200, "healthy")
    assert (by_form.status_code, by_form.headers["location"]) == (303, "/ui/")
    assert forged.status_code == 403
    actions = Counter(json.loads(line)["action"] for line in audit.splitlines())
    assert actions == {"demo.repair.start": 2, "demo.repair.end": 2, "demo.repair.refused": 1}


def test_without_a_demo_there_is_nothing_to_show_or_repair(up: Up, tmp_path: Path) -> None:
    shown, repaired = up.get("/demo"), post(up, "/demo/repair")
    by_command = postroad(tmp_path, "demo", "repair")

    assert (shown.status_code, repaired.status_code) == (404, 404)
    assert by_command.returncode == 2
    assert "postroad up --demo" in by_command.stderr


def test_a_file_with_other_data_is_refused_and_not_changed(tmp_path: Path) -> None:
    with connect(f"sqlite:///{tmp_path}/data.db") as backend:
        backend.create_queue(QueueSpec("orders"))

    answer = run(tmp_path, "--demo", "--port", "0")

    assert answer.returncode == 2
    assert "not the demo's" in answer.stderr
    assert not (tmp_path / "data.db.demo").exists()
    with connect(f"sqlite:///{tmp_path}/data.db") as backend:
        assert backend.queues() == ["orders"]


@pytest.mark.parametrize("url", ["memory://", "aws://eu-central-1"])
def test_a_demo_needs_a_file(tmp_path: Path, url: str) -> None:
    answer = run(tmp_path, "--demo", "--port", "0", "--url", url)

    assert answer.returncode == 2
    assert "needs a file" in answer.stderr


def test_its_data_is_a_file_of_its_own_whatever_the_environment_names(tmp_path: Path) -> None:
    command = [*POSTROAD, "up", "--json", "--demo", "--port", "0"]
    environment = {**os.environ, "POSTROAD_URL": f"sqlite:///{tmp_path}/production.db"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=tmp_path, env=environment
        )
    assert process.stdout is not None

    ready = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)

    assert ready["data"] == f"{tmp_path}/postroad-demo.db"
    assert not (tmp_path / "production.db").exists()


def test_the_demo_opens_a_browser_tells_its_story_and_leaves_nothing_behind(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    environment = {**os.environ, "BROWSER": str(browser), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*POSTROAD, "demo", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not (lines and lines[-1].startswith("Repair:")):
        lines.append(process.stdout.readline().rstrip())
    repair = subprocess.run(
        ["/bin/sh", "-c", lines[-1].removeprefix("Repair:")], capture_output=True, text=True, check=False
    )
    while not lines[-1].startswith("Redrive:"):
        lines.append(process.stdout.readline().rstrip())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)

    assert process.returncode == 0
    assert repair.returncode == 0, repair
    assert lines[1].startswith("dashboard  ")
    assert (tmp_path / "opened").read_text().strip() == lines[1].removeprefix("dashboard  ")
    assert not list(tmp_path.glob("postroad-demo-*"))


@pytest.mark.parametrize("flags", [("--seconds", "5"), ("--once", "--seconds", "0"), ("repair", "--once")])
def test_options_that_do_not_fit_together_are_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    answer = postroad(tmp_path, "demo", *flags)

    assert answer.returncode == 2
    assert len(answer.stderr.splitlines()) <= 3
