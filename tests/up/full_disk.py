"""A `postroad up` whose disk becomes full and has room again; run as a script under `unshare --mount`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx


def take_what_is_left(disk: Path) -> None:
    """Let another program use up the disk to the last byte."""
    with (disk / "other").open("ab", buffering=0) as other:
        for size in (65_536, 4_096, 1):
            try:
                while True:
                    other.write(bytes(size))
            except OSError:
                continue


def until(holds: Callable[[], bool], *, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


HANDLERS = """
import pathlib
import time

import postroad

orders = postroad.Bus("placed", group="billing")


@postroad.event(name="orders.placed")
class Placed:
    n: int


@orders.on(Placed)
def charge(event: Placed) -> None:
    while not pathlib.Path("go").exists():
        time.sleep(0.05)


@orders.on(Placed)
def tell_the_accountants_of_all_companies_that_something_was_ordered(event: Placed) -> None:
    pathlib.Path("handled").touch()
"""


def main(disk: Path, elsewhere: Path) -> dict[str, Any]:
    (elsewhere / "shop_handlers.py").write_text(HANDLERS)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    command = [sys.executable, "-m", "postroad", "up", "--json", "--port", "0", "--url", f"sqlite:///{disk}/data.db"]
    up = subprocess.Popen([*command, "--load", "shop_handlers"], stdout=subprocess.PIPE, text=True, cwd=elsewhere)
    assert up.stdout is not None
    ready = json.loads(up.stdout.readline())
    client = httpx.Client(
        base_url=ready["url"], headers={"Authorization": f"Bearer {ready['token']}"}, timeout=30, verify=False
    )
    body = {"messages": [{"body": "x" * 10_000}] * 10}

    def send() -> httpx.Response:
        return client.post("/queues/orders/messages", json=body)

    try:
        assert client.put("/queues/orders", json={}).status_code == 201
        assert send().json()["results"][0]["ok"]
        assert client.post("/topics/placed/events", json={"type": "orders.placed", "payload": {"n": 1}}).is_success
        take_what_is_left(disk)
        while (refused := send()).status_code == 200:
            pass
        not_ready = until(lambda: client.get("/ready").status_code == 503)
        take_what_is_left(disk)
        token = client.post("/tokens", json={"name": "late", "scope": "read"})
        # What is recorded fits into the last block of the audit file for a while.
        purge = {"confirm": "orders", "reason": "no room"}
        while (purged := client.post("/queues/orders/purge", json=purge)).status_code == 200:
            take_what_is_left(disk)
        # The first thing that the runners measure needs a new block.
        (elsewhere / "go").touch()
        handled = until((elsewhere / "handled").exists, seconds=60)
        reads = {path: client.get(path).status_code for path in ("/health", "/queues", "/queues/orders/messages")}
        (disk / "other").unlink()
        sent_again = until(lambda: send().status_code == 200)
        ready_again = until(lambda: client.get("/ready").status_code == 200)
        restarts = sum(part["restarts"] for part in client.get("/status").json()["parts"])
    finally:
        up.terminate()
        up.communicate(timeout=120)
    return {
        "refused": [
            [each.status_code, each.json()["type"], "retry-after" in each.headers] for each in (refused, token, purged)
        ],
        "handled": handled,
        "not_ready": not_ready,
        "reads": reads,
        "sent_again": sent_again,
        "ready_again": ready_again,
        "restarts": restarts,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
