"""A redrive goes on after its server was killed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.up.conftest import StartUp
from tests.waiting import eventually

import postroad
from postroad import OutgoingMessage, QueueSpec

pytestmark = pytest.mark.slow
_MESSAGES = 2_300


def test_a_redrive_whose_server_is_killed_between_its_steps_moves_each_message_once(
    start_up: StartUp, tmp_path: Path
) -> None:
    with postroad.connect(f"sqlite:///{tmp_path}/data.db") as backend:
        dead = backend.create_queue(QueueSpec("orders-dlq"))
        backend.create_queue(QueueSpec("orders", dead_letter="orders-dlq", max_receives=3))
        for start in range(0, _MESSAGES, 100):
            dead.send([OutgoingMessage(str(n)) for n in range(start, start + 100)])
        # Each server dies after its second step of 500.
        up = start_up(POSTROAD_FAILPOINTS="queue.redrive.mid=kill9#2")
        headers = {"Authorization": f"Bearer {up.ready['token']}"}

        answer = httpx.post(
            up.ready["url"] + "/queues/orders-dlq/redrive", json={"reason": "fixed"}, headers=headers, timeout=30
        )
        operation = f"/operations/{answer.json()['operation_id']}"
        eventually(lambda: up.get(operation).json()["state"] != "running")
        document = up.get(operation).json()

        assert answer.status_code == 202
        assert up.parts()["server"]["restarts"] == 2
        assert (document["state"], document["moved"], document["matched"]) == ("done", _MESSAGES, _MESSAGES)
        assert document["report"]["destinations"] == {"orders": _MESSAGES}
        bodies = []
        orders = backend.queue("orders")
        while messages := orders.receive(max_messages=10):
            bodies += [int(each.body) for each in messages]
            orders.ack(messages)
        assert sorted(bodies) == list(range(_MESSAGES))
        assert dead.stats().visible == 0
