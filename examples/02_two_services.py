"""Two services, two processes, one file: the shop publishes orders, and billing charges them and tells the shop.

Run it: python examples/02_two_services.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from queue import Queue

import postroad


@postroad.event(name="examples.order-placed")
class OrderPlaced:
    order_id: str


@postroad.event(name="examples.order-paid")
class OrderPaid:
    order_id: str


ORDERS = ("A-1", "A-2", "A-3")
billing = postroad.Bus("orders", group="billing")


@billing.on(OrderPlaced, max_attempts=5, retry_delays=(1, 5, 30))
def charge(event: OrderPlaced) -> None:
    billing.publish(OrderPaid(event.order_id)).raise_if_errors()


def open_shop(url: str) -> None:
    paid: Queue[str] = Queue()
    with postroad.connect(url) as backend, backend.bus("orders", "shop") as shop:
        backend.bind(billing)  # makes billing's queue, so orders wait there until billing has started
        shop.subscribe(OrderPaid, lambda event: paid.put(event.order_id))
        shop.start_receiver()
        for order_id in ORDERS:
            shop.publish(OrderPlaced(order_id)).raise_if_errors()
        print("shop: three orders are placed, and billing starts")
        with subprocess.Popen([sys.executable, __file__, url]) as process:
            for _ in ORDERS:
                print(f"shop: {paid.get(timeout=20)} is paid")
            process.terminate()  # billing finishes what it is doing, and ends
        print(f"shop: billing has ended with {process.returncode}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        postroad.run(billing, url=sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            open_shop(f"sqlite:///{directory}/postroad.db")
