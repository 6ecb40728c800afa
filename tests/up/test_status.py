"""`postroad status` asks the `postroad up` on its data."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.up.conftest import StartUp
from tests.up.up import POSTROAD

pytestmark = pytest.mark.slow


def status(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*POSTROAD, "status", "--url", f"sqlite:///{folder}/data.db", *flags]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60)


def test_it_prints_the_document_of_the_server_and_is_exit_3_when_none_runs(start_up: StartUp, tmp_path: Path) -> None:
    up = start_up("--read-only")

    shown, asked = status(tmp_path, "--json"), up.get("/status").json()
    for_people = status(tmp_path)
    up.stop()
    afterwards = status(tmp_path)

    document = json.loads(shown.stdout)
    assert (shown.returncode, for_people.returncode) == (0, 0)
    assert {**document, "uptime_seconds": 0} == {**asked, "uptime_seconds": 0}
    assert document["read_only"] is True
    assert f"at {up.ready['url']}" in for_people.stdout
    assert "read-only" in for_people.stdout
    assert afterwards.returncode == 3
    assert afterwards.stderr.splitlines()[0].startswith("error: no `postroad up` runs on sqlite:///")
    assert "postroad up" in afterwards.stderr.splitlines()[-1]


def test_what_a_killed_one_left_behind_is_exit_3(start_up: StartUp, tmp_path: Path) -> None:
    up = start_up()
    up.process.kill()
    up.process.wait(timeout=120)

    done = status(tmp_path, "--json")

    assert done.returncode == 3
    assert up.ready["url"] in json.loads(done.stderr)["detail"]
