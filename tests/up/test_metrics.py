"""What the runners measure reaches `/metrics` of the server."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from tests.up.conftest import StartUp
from tests.up.up import Up
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ACKED = 'postroad_messages_total{outcome="acked",queue="orders--billing"} 3.0'
SHOP = """
import postroad

@postroad.event(name="orders.placed")
class OrderPlaced:
    n: int

orders = postroad.Bus("orders", group="billing")

@orders.on(OrderPlaced)
def charge(event: OrderPlaced) -> None:
    pass
"""


def metrics(up: Up) -> str:
    return up.get("/metrics").text


def handled(up: Up) -> int:
    labels = 'handler="[^"]*charge",queue="orders--billing",service="orders"'
    found = re.search(rf"postroad_handler_seconds_count\{{{labels}\}} (\d+)", metrics(up))
    return 0 if found is None else int(found[1])


def publish(up: Up, count: int) -> None:
    headers = {"Authorization": f"Bearer {up.ready['token']}"}
    for n in range(count):
        body = {"type": "orders.placed", "payload": {"n": n}}
        assert httpx.post(up.ready["url"] + "/topics/orders/events", json=body, headers=headers).status_code == 202


@pytest.mark.long
def test_handlers_of_the_runners_are_measured_and_a_new_start_begins_at_zero(start_up: StartUp, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    first = start_up("--load", "shop")
    eventually(lambda: first.parts()["bus"]["state"] == "running")
    publish(first, 3)

    eventually(lambda: handled(first) == 3 and ACKED in metrics(first))
    text = metrics(first)
    first.stop()
    second = start_up("--load", "shop")

    assert 'postroad_part_up{part="bus"} 1.0' in text
    assert "pid=" not in text
    assert list(tmp_path.glob("data.db.metrics")) == [tmp_path / "data.db.metrics"]
    assert handled(second) == 0
    # The engine's own counters go on.
    assert ACKED in metrics(second)
