"""SEC13 in one run: secrets in a payload, a DSN, a token and a header reach nothing that tells of itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.up.conftest import StartUp
from tests.up.up import POSTROAD, Up
from tests.waiting import eventually

import postroad
from postroad.tasks import TaskProducer

pytestmark = pytest.mark.slow

PAYLOAD, DSN, TOKEN, FOREIGN, HEADER = (
    f"canary-{place}-0123456789abcdef" for place in ("payload", "dsn", "token", "foreign", "header")
)
SHOP = """
import postroad

orders = postroad.Bus("orders", group="billing")

@postroad.event(name="orders.placed")
class OrderPlaced:
    order_id: str

@orders.on(OrderPlaced, max_attempts=1)
def charge(event: OrderPlaced) -> None:
    raise ValueError(f"password={event.order_id}")

@postroad.task("refund", max_attempts=1)
def refund(order_id: str) -> None:
    raise ValueError(f"Authorization: Bearer {order_id}")
"""


def ask(up: Up, method: str, path: str, **given: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Shop-Key": HEADER, **given.pop("headers", {})}  # type: ignore[dict-item]
    return httpx.request(method, up.ready["url"] + path, headers=headers, timeout=20, **given)  # type: ignore[arg-type]


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [*POSTROAD, *words, "--json", "--url", f"sqlite:///{folder}/data.db"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "POSTROAD_OUTBOX_DSN": f"postgresql://shop:{DSN}@127.0.0.1:1/shop", "POSTROAD_TOKEN": TOKEN},
        check=False,
    )
    return done.stdout + done.stderr


def test_sec13_canaries_reach_no_log_metric_error_report_or_command_line(start_up: StartUp, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    up = start_up("--load", "shop", POSTROAD_TOKEN=TOKEN, PYTHONPATH=str(tmp_path))
    with postroad.connect(f"sqlite:///{tmp_path}/data.db") as backend:
        producer = TaskProducer(backend, tenant_id="default", app="postroad")
        run = producer.submit("refund", {"order_id": PAYLOAD}).request_id
    event = {"type": "orders.placed", "payload": {"order_id": PAYLOAD}}
    published = ask(up, "POST", "/topics/orders/events", json=event)
    event_id = published.json()["event_id"]

    eventually(lambda: ask(up, "GET", f"/why/{event_id}").json().get("verdict") == "dead")
    eventually(lambda: ask(up, "GET", f"/why/{run}").json().get("verdict") == "failed")
    refused = [
        ask(up, "POST", "/topics/orders/events", json={"type": "orders.placed", "payload": {"order_id": [PAYLOAD]}}),
        ask(up, "POST", "/topics/orders/events", content=f'{{"type": "{PAYLOAD}'.encode()),
        ask(up, "POST", "/queues/nowhere/messages", json={"messages": [{"body": PAYLOAD}]}),
        ask(up, "GET", "/queues", headers={"Authorization": f"Bearer {FOREIGN}"}),
        ask(up, "GET", f"/queues?token={FOREIGN}"),
        ask(up, "POST", "/login", data={"token": FOREIGN}),
    ]
    told = {f"answer {answer.request.url.path}": answer.text for answer in refused}
    told |= {
        path: ask(up, "GET", path).text
        for path in ("/metrics", "/status", "/overview", f"/why/{event_id}", f"/why/{run}")
    }
    verbs = ("doctor", "config show", "outbox status", f"why {event_id}")
    told |= {verb: command(tmp_path, *verb.split()) for verb in verbs}
    group = os.getpgid(up.process.pid)
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(each.name)) == group:
                told[f"command line of {each.name}"] = (each / "cmdline").read_text()
        except (OSError, ProcessLookupError):
            continue
    up.stop()
    told["log"] = (tmp_path / "log").read_text()

    assert all(400 <= answer.status_code < 500 for answer in refused)
    assert "127.0.0.1" in told["outbox status"]
    assert "bus_dead_lettered" in told["log"]
    assert [
        where for where, text in told.items() for canary in (PAYLOAD, DSN, TOKEN, FOREIGN, HEADER) if canary in text
    ] == []
