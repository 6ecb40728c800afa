"""A first event: it is handled here at once, and by a group that keeps what nobody has handled yet.

Run it: python examples/01_first_event.py
"""

from __future__ import annotations

import tempfile

import postroad


@postroad.event(name="examples.order-placed")
class OrderPlaced:
    order_id: str
    amount: int


def main(url: str) -> None:
    with postroad.connect(url) as backend:
        shop = backend.bus("orders")
        shop.subscribe(OrderPlaced, lambda event: print(f"  the shop prints a receipt for {event.order_id}"))
        billing = backend.bus("orders", "billing")

        print("publishing two orders:")
        for event in (OrderPlaced("A-1", 30), OrderPlaced("A-2", 12)):
            result = shop.publish(event)
            assert result.ok, result.errors

        print("billing comes to work and finds both:")
        billing.subscribe(OrderPlaced, lambda event: print(f"  billing sends an invoice over {event.amount}"))
        handled = billing.receive_once()

        print(f"{len(handled)} handled, {backend.queue('orders--billing').stats().visible} left")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"sqlite:///{directory}/postroad.db")
