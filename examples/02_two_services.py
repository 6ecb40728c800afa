"""A shop and its billing are two processes: what fails is retried; what is given up is repaired and sent back.

Run it: python examples/02_two_services.py
"""

import subprocess
import sys
import tempfile
import time
from contextlib import chdir
from queue import Queue

import postroad
from postroad.operations import redrive


@postroad.event(name="examples.order-placed")
class OrderPlaced:
    order_id: str
    item: str


@postroad.event(name="examples.order-paid")
class OrderPaid:
    order_id: str


billing = postroad.Bus("orders", group="billing", event_types=[OrderPlaced])
priced = sys.argv[1:]


@billing.on(OrderPlaced, max_attempts=2, retry_delays=(1,))
def charge(event: OrderPlaced) -> None:
    if event.item not in priced:
        raise LookupError(f"{event.item} has no price")
    billing.publish(OrderPaid(event.order_id)).raise_if_errors()


def open_shop(backend: postroad.Backend) -> None:
    paid: Queue[OrderPaid] = Queue()
    shop = backend.bus("orders", "shop", event_types=[OrderPaid])
    shop.subscribe(OrderPaid, paid.put)
    shop.start_receiver()
    backend.bind(billing)  # makes its queue, so orders wait there until billing has started
    shop.publish_many([OrderPlaced("A-1", "tea"), OrderPlaced("A-2", "milk")])
    for prices in (["tea"], ["tea", "milk"]):
        with subprocess.Popen([sys.executable, __file__, *prices]) as process:
            print(f"shop: {paid.get(timeout=60).order_id} is paid")
            while (left := backend.queue("orders--billing").stats()).visible or left.in_flight or left.delayed:
                time.sleep(0.1)
            process.terminate()  # it finishes what it has begun
        redrive(backend, "orders--billing--dead", reason="milk has a price")


if __name__ == "__main__" and priced:
    postroad.run(billing)  # or: postroad bus run shop:billing
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chdir(folder), postroad.connect() as backend:
        open_shop(backend)
