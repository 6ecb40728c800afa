"""Scene `bus`: a shop publishes its orders; billing and the warehouse handle them, each event exactly once."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack

from postroad.bus import Bus
from postroad.events import event
from postroad.inbox import Inbox
from postroad.up.demo.database import record_effect
from postroad.up.demo.stage import Stage, handled_event
from postroad.wiring import run

SCENE, TOPIC = "bus", "demo-orders"
ITEMS = {"espresso cups": 2_400, "oak shelf": 12_900, "linen apron": 3_800, "copper kettle": 8_900, "wool rug": 24_500}
CANCELLED = 0.08
UNREACHABLE = 0.03


@event(name="demo.order-placed")
class OrderPlaced:
    """A customer has ordered something."""

    order_id: str
    item: str
    cents: int


@event(name="demo.order-cancelled")
class OrderCancelled:
    """A customer does not want it any more."""

    order_id: str


def play(stage: Stage) -> None:
    """Publish orders and handle them until the stage stops."""
    with ExitStack() as stack:
        inbox = stack.enter_context(Inbox.sqlite(stage.database.path))
        billing = stack.enter_context(stage.backend.bus(TOPIC, "billing", inbox=inbox))
        warehouse = stack.enter_context(stage.backend.bus(TOPIC, "warehouse", inbox=inbox))

        @billing.on(OrderPlaced)
        def charge(event: OrderPlaced, connection: sqlite3.Connection) -> None:
            event_id, failures = handled_event()
            if not failures and stage.chance.random() < UNREACHABLE:
                raise ConnectionError("the bank does not answer")
            record_effect(connection, SCENE, event_id, "charge", failures=failures)

        @warehouse.on(OrderPlaced)
        def pack(event: OrderPlaced, connection: sqlite3.Connection) -> None:
            event_id, failures = handled_event()
            record_effect(connection, SCENE, event_id, "pack", failures=failures)

        @billing.on(OrderCancelled)
        def refund(event: OrderCancelled, connection: sqlite3.Connection) -> None:
            event_id, failures = handled_event()
            record_effect(connection, SCENE, event_id, "refund", failures=failures)

        shop = stack.enter_context(stage.backend.bus(TOPIC, local=False))
        stack.enter_context(stage.working(lambda stop: run(billing, warehouse, stop=stop)))
        for _ in stage.beats(7):
            order_id = f"{stage.chance.choice('ABCDEF')}-{stage.chance.randint(10_000, 99_999)}"
            item = stage.chance.choice(list(ITEMS))
            _publish(stage, shop, OrderPlaced(order_id, item, ITEMS[item]), effects=2)
            if stage.chance.random() < CANCELLED:
                _publish(stage, shop, OrderCancelled(order_id), effects=1)


def _publish(stage: Stage, shop: Bus, event: object, *, effects: int) -> None:
    result = shop.publish(event)
    result.raise_if_errors()
    stage.database.published(SCENE, str(result.event_id), effects=effects)
