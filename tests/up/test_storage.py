"""Storage that refuses under a running `postroad up`: a full disk, a file that another program keeps locked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.up.conftest import StartUp
from tests.up.up import run
from tests.waiting import eventually

pytestmark = pytest.mark.slow

LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
input()
"""


def test_a_full_disk_is_503_reads_go_on_and_it_recovers_by_itself(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    for options in (["--mount"], ["--mount", "--user", "--map-root-user"]):
        probe = [unshare or "unshare", *options, "mount", "-t", "tmpfs", "none", "/mnt"]
        if unshare and subprocess.run(probe, capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("absent: a small file system; unshare --mount needs root or user namespaces")

    script = str(Path(__file__).with_name("full_disk.py"))
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    disk.mkdir()
    elsewhere.mkdir()
    command = [str(unshare), *options, sys.executable, script, str(disk), str(elsewhere)]
    played = subprocess.run(command, capture_output=True, text=True, timeout=500)

    assert played.returncode == 0, played.stderr[-2_000:]
    assert json.loads(played.stdout) == {
        "refused": [[503, "/errors/storage-full", True]] * 3,
        "handled": True,
        "not_ready": True,
        "reads": {"/health": 200, "/queues": 200, "/queues/orders/messages": 200},
        "sent_again": True,
        "ready_again": True,
        "restarts": 0,
    }


def test_a_backend_that_cannot_be_reached_is_exit_3_with_its_address(tmp_path: Path) -> None:
    address = "http://127.0.0.1:1"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}

    done = run(tmp_path, "--url", f"aws://eu-central-1?endpoint_url={address}", "--port", "0", **keys)

    assert done.returncode == 3
    assert len(done.stderr.splitlines()) <= 3
    assert address in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_file_that_stays_locked_is_503_reads_go_on_and_it_recovers_by_itself(
    start_up: StartUp, tmp_path: Path
) -> None:
    up = start_up()
    headers = {"Authorization": f"Bearer {up.ready['token']}"}
    with httpx.Client(base_url=up.ready["url"], headers=headers, timeout=30, verify=False) as client:
        assert client.put("/queues/orders", json={}).status_code == 201
        holder = subprocess.Popen(
            [sys.executable, "-c", LOCK, str(tmp_path / "data.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            sent = client.post("/queues/orders/messages", json={"messages": [{"body": "1"}]})
            ready = client.get("/ready")
            reads = {path: client.get(path).status_code for path in ("/health", "/queues", "/queues/orders/messages")}
        finally:
            holder.communicate("\n", timeout=20)
        again = client.post("/queues/orders/messages", json={"messages": [{"body": "2"}]})
        eventually(lambda: client.get("/ready").status_code == 200)
        bodies = [each["body"] for each in client.get("/queues/orders/messages?payload=1").json()["items"]]

    assert (sent.status_code, ready.status_code) == (503, 503)
    assert int(sent.headers["Retry-After"]) >= 1
    assert reads == {"/health": 200, "/queues": 200, "/queues/orders/messages": 200}
    assert again.json()["results"][0]["ok"]
    assert bodies == ["2"]
