"""FastAPI with a bus in its lifespan: requests publish, and async handlers run on the server's event loop.

Try it:   python examples/03_async_fastapi.py
Serve it: POSTROAD_URL=sqlite:///shop.db uvicorn --app-dir examples 03_async_fastapi:app
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

import postroad


@postroad.event(name="examples.order-placed")
class OrderPlaced:
    order_id: str


handled: list[OrderPlaced] = []
billing = postroad.Bus("orders", group="billing")


@billing.on(OrderPlaced)
async def write_receipt(event: OrderPlaced) -> None:
    print(f"a receipt for {event.order_id}")
    handled.append(event)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    url = os.environ.get("POSTROAD_URL", "memory://")
    async with postroad.connect(url) as backend, billing:  # leaving it waits for the handlers that run
        backend.bind(billing)
        billing.start_receiver()
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: OrderPlaced) -> None:
    (await billing.apublish(order)).raise_if_errors()


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        print(await client.post("/orders", json={"order_id": "A-1"}))
        while not handled:
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
