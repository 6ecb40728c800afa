"""Dispatcher and bus are killed again and again: each order has its effect once, and those of a key in order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.platform.events import OrderPlaced, Shop
from tests.waiting import eventually

import postroad
from postroad.inbox import Inbox

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ORDERS, KEYS, KILLS = 300, 5, 6


class Service:
    """A process that is killed and started again."""

    def __init__(self, role: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "tests.platform.child", role, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def test_an_effect_happens_once_and_in_order_whoever_is_killed(
    tmp_path: Path, topic: str, shop: Shop, inbox: Inbox, place: Callable[..., None]
) -> None:
    url = f"sqlite:///{tmp_path / 'events.db'}"
    with postroad.connect(url) as backend:
        backend.bus(topic, "billing", fifo=True).close()

    def more_than(count: int) -> bool:
        return len(shop.ledger()) > count

    services = [Service(role, url, topic, str(shop.path)) for role in ("dispatch", "handle")]
    try:
        for service in services:
            service.start()
        for number in range(KILLS):
            part = range(number * ORDERS // KILLS, (number + 1) * ORDERS // KILLS)
            place(*[OrderPlaced(f"A-{each % KEYS}", each) for each in part])
            done = len(shop.ledger())
            eventually(partial(more_than, done))
            services[number % 2].kill()
            services[number % 2].start()

        eventually(lambda: len(shop.ledger()) >= ORDERS)
    finally:
        for service in services:
            service.kill()
    effects = shop.ledger()
    assert sorted(number for _, number in effects) == list(range(ORDERS))
    for key in range(KEYS):
        mine = [number for order_id, number in effects if order_id == f"A-{key}"]
        assert mine == sorted(mine)
