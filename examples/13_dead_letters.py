"""A handler with a bug: its events become dead letters with the reason, and come back when the bug is fixed.

Run it: python examples/13_dead_letters.py
"""

from __future__ import annotations

import tempfile

import postroad
from postroad import BusConfig
from postroad.operations import Match, failure_groups, redrive

PRICES = {"tea": 3}


@postroad.event(name="examples.item-ordered")
class ItemOrdered:
    item: str


def main(url: str) -> None:
    with postroad.connect(url) as backend:
        kitchen = backend.bus("items", "kitchen", config=BusConfig(wait_time_seconds=0))

        @kitchen.on(ItemOrdered, max_attempts=1)
        def price(event: ItemOrdered) -> None:
            print(f"  {event.item} costs {PRICES[event.item]}")

        for item in ("tea", "cake", "soup", "cake"):
            kitchen.publish(ItemOrdered(item)).raise_if_errors()
        print("the kitchen does not know every price:")
        while kitchen.receive_once():
            pass

        # On the command line: postroad queue groups items--kitchen--dead
        for group in failure_groups(backend, "items--kitchen--dead").groups:
            print(f"{group.count} dead letters, because {group.error}")

        print("the price of cake is added, and the events are redriven:")
        PRICES.update(cake=5, soup=4)
        chosen = Match(event_type="examples.item-ordered")
        report = redrive(backend, "items--kitchen--dead", match=chosen, reason="prices were missing")
        while kitchen.receive_once():
            pass
        print(f"{report.moved} moved, {backend.queue('items--kitchen--dead').stats().visible} dead letters left")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"sqlite:///{directory}/postroad.db")
