"""A service is its handlers: a bus is declared first and bound to a backend later."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.platform.events import QUICK, OrderPlaced
from tests.waiting import NEVER_SECONDS, eventually

import postroad
from postroad import Bus
from postroad.bus import KinesisEventBus
from postroad.errors import ConfigurationError
from postroad.up.runners import load_modules

SERVICE = """
import postroad

orders = postroad.Bus("orders", group="billing")

@postroad.event(name="orders.declared")
class OrderDeclared:
    order_id: str

@orders.on(OrderDeclared, max_attempts=5, retry_delays=(1, 5, 30))
async def charge(event: OrderDeclared) -> None:
    print("charged", event.order_id, flush=True)

if __name__ == "__main__":
    postroad.run(orders)
"""
COMMANDS = {
    "the command": ["-m", "postroad", "bus", "run", "shop:orders", "--concurrency", "8"],
    "the file itself": ["shop.py"],
}


def test_a_bus_without_a_store_names_both_ways_to_get_one() -> None:
    orders = Bus("orders", group="billing")

    with pytest.raises(ConfigurationError) as caught:
        orders.publish(OrderPlaced("A-1"))

    assert "bind(backend)" in caught.value.remedy
    assert "postroad.run(bus)" in caught.value.remedy


def test_handlers_that_were_registered_before_are_called_after_it_is_bound() -> None:
    seen: list[OrderPlaced] = []
    orders = Bus("orders", "billing", config=QUICK)
    orders.on(OrderPlaced)(seen.append)

    with postroad.connect("memory://") as backend:
        orders.bind(backend)
        orders.publish(OrderPlaced("A-1"))
        orders.receive_once()

        with pytest.raises(ConfigurationError, match="bound already"):
            orders.bind(backend)

    assert seen == [OrderPlaced("A-1")]


def test_a_bus_that_was_never_bound_can_be_closed_and_bound_later() -> None:
    orders = Bus("orders", group="billing", config=QUICK)
    orders.on(OrderPlaced)(lambda event: None)

    orders.close()

    with postroad.connect("memory://") as backend:
        orders.bind(backend).publish(OrderPlaced("A-1"))
        assert orders.receive_once() == [OrderPlaced("A-1")]


def test_a_backend_binds_a_bus_once() -> None:
    with postroad.connect("memory://") as one, postroad.connect("memory://") as other:
        orders = one.bus("orders", "billing")

        with pytest.raises(ConfigurationError, match="bound already"):
            other.bind(orders)


def test_run_ends_with_the_error_that_ended_the_thread_of_a_bus() -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError("this filter of the program is broken")

    orders = Bus("orders", "billing", config=QUICK)
    orders.on(OrderPlaced)(lambda event: 1 / 0)
    logger, stop = logging.getLogger("postroad.bus"), threading.Event()
    with postroad.connect("memory://") as backend, ThreadPoolExecutor() as pool:
        orders.bind(backend)
        orders.publish(OrderPlaced("A-1"))
        logger.addFilter(refuse)
        try:
            running = pool.submit(postroad.run, orders, stop=stop)
            eventually(running.done)
        finally:
            logger.removeFilter(refuse)
            stop.set()

        assert str(running.exception()) == "this filter of the program is broken"
        assert not orders.health().running


def test_run_refuses_a_bus_without_handlers_by_name() -> None:
    with pytest.raises(ConfigurationError, match="the bus 'orders' has no handlers") as caught:
        postroad.run(Bus("orders", "billing"), url="memory://")

    assert caught.value.field == "buses"


def test_run_connects_binds_and_receives_until_it_is_stopped(tmp_path: Path) -> None:
    url, stop = f"sqlite:///{tmp_path / 'events.db'}", threading.Event()
    seen: list[OrderPlaced] = []
    orders = Bus("orders", "billing", config=QUICK)
    orders.on(OrderPlaced)(seen.append)
    running = threading.Thread(target=postroad.run, args=(orders,), kwargs={"url": url, "stop": stop})
    running.start()
    eventually(lambda: orders.is_bound)
    with postroad.connect(url) as backend:
        backend.bus("orders", "web").publish(OrderPlaced("A-1"))

        eventually(lambda: seen)
        stop.set()
        running.join(120)

    assert (seen, running.is_alive()) == ([OrderPlaced("A-1")], False)


def test_run_stops_all_its_buses_at_the_same_time() -> None:
    began, goes_on, stop = threading.Event(), threading.Event(), threading.Event()
    quick, slow = Bus("quick", "billing", config=QUICK), Bus("slow", "billing", config=QUICK)
    quick.on(OrderPlaced)(lambda event: None)

    @slow.on(OrderPlaced)
    def wait(event: OrderPlaced) -> None:
        began.set()
        goes_on.wait(NEVER_SECONDS)

    with postroad.connect("memory://") as backend, ThreadPoolExecutor() as pool:
        quick.bind(backend)
        slow.bind(backend)
        slow.publish(OrderPlaced("A-1"))
        running = pool.submit(postroad.run, quick, slow, stop=stop)
        assert began.wait(NEVER_SECONDS)

        stop.set()
        eventually(lambda: not quick.health().running)
        waits_for_the_handler = not running.done()
        goes_on.set()
        eventually(running.done)

    assert waits_for_the_handler


def test_run_takes_a_bus_of_another_transport() -> None:
    seen: list[OrderPlaced] = []
    stop = threading.Event()
    with postroad.connect("memory://") as backend, ThreadPoolExecutor() as pool:
        clicks = KinesisEventBus(stream=backend.stream("orders"), consumer="billing", config=QUICK)
        clicks.on(OrderPlaced)(seen.append)
        clicks.publish(OrderPlaced("A-1"))
        running = pool.submit(postroad.run, clicks, stop=stop)

        eventually(lambda: seen)
        stop.set()
        running.result(NEVER_SECONDS)
        clicks.close()

    assert seen == [OrderPlaced("A-1")]


@pytest.mark.slow
@pytest.mark.parametrize("way", COMMANDS)
def test_a_whole_service_in_one_file_runs_until_sigterm(tmp_path: Path, way: str) -> None:
    (tmp_path / "shop.py").write_text(SERVICE)
    command = [sys.executable, *COMMANDS[way]]
    service = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        eventually(lambda: (tmp_path / "postroad.db").exists())
        publish = ["bus", "publish", "orders", "orders.declared", '{"order_id": "A-1"}']
        subprocess.run([sys.executable, "-m", "postroad", *publish], cwd=tmp_path, check=True, capture_output=True)
        assert service.stdout is not None
        told = service.stdout.readline()
        service.send_signal(signal.SIGTERM)
        logged = service.communicate(timeout=120)[1].splitlines()
    finally:
        service.kill()
        service.communicate()

    assert (told, service.returncode) == (b"charged A-1\n", 0)
    # The command writes its log as the settings say; a program of one's own decides about its logs itself.
    assert ("bus_received" in [json.loads(line)["event"] for line in logged]) == (way == "the command")
    with postroad.connect(f"sqlite:///{tmp_path / 'postroad.db'}") as backend:
        assert backend.queue_spec("orders--billing").max_receives == 5


def test_what_is_not_a_bus_cannot_run() -> None:
    with pytest.raises(ConfigurationError, match="'orders' is not a bus"):
        postroad.run("orders")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "named", "why", "remedy"),
    [
        ("import no_such_driver", "shop", "'no_such_driver' [shop.py, line 2]", "`python -c 'import shop'`"),
        (
            "raise KeyError('DATABASE')",
            "shop",
            "KeyError: 'DATABASE' [shop.py, line 2]",
            "Correct what the module does",
        ),
        ("pass", "shop.py", "'shop.py' cannot be imported", "instead of its file: shop."),
        ("pass", "shopp", "No module named 'shopp'", "finds from this directory"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_line_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, named: str, why: str, remedy: str
) -> None:
    (tmp_path / "shop.py").write_text(f"import postroad\n{content}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)

    with pytest.raises(ConfigurationError) as refused:
        load_modules([named], field="module")

    assert why in str(refused.value)
    assert remedy in refused.value.remedy
