"""Litestar with a bus in its lifespan: requests publish, and async handlers run on the server's event loop.

Try it:   python examples/16_async_litestar.py
Serve it: POSTROAD_URL=sqlite:///shop.db uvicorn --app-dir examples 16_async_litestar:app
"""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from litestar import Litestar, post
from litestar.params import Body
from litestar.testing import TestClient

import postroad


@postroad.event(name="examples.order-placed")
class OrderPlaced:
    order_id: str


handled: list[OrderPlaced] = []
billing = postroad.Bus("orders", group="billing")


@billing.on(OrderPlaced)
async def write_receipt(event: OrderPlaced) -> None:
    handled.append(event)
    print(f"a receipt for {event.order_id}")


@asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    url = os.environ.get("POSTROAD_URL", "memory://")
    async with postroad.connect(url) as backend, billing:  # leaving it waits for the handlers that run
        backend.bind(billing)
        billing.start_receiver()
        yield


@post("/orders", status_code=202)
async def place(data: Annotated[OrderPlaced, Body()]) -> None:
    (await billing.apublish(data)).raise_if_errors()


app = Litestar([place], lifespan=[lifespan], logging_config=None)


if __name__ == "__main__":
    with TestClient(app) as client:  # runs the lifespan, as a server does
        print(client.post("/orders", json={"order_id": "A-1"}))
        while not handled:
            time.sleep(0.05)
