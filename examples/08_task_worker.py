"""A task that runs in a process of its own, fails twice, and completes at the third attempt.

Run it: python examples/08_task_worker.py
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import postroad
from postroad.tasks import TaskContext, TaskProducer, TaskWorker, task


@dataclass
class Store:
    store_id: str
    pages: int


@task("scrape-store", max_attempts=4, retry_on=(ConnectionError,), retry_base=0.05, timeout="30s")
def scrape(ctx: TaskContext, store_id: str, depth: int = 2) -> Store:
    """Fetch a store's pages; the first two attempts find it busy."""
    if ctx.attempt < 3:
        raise ConnectionError(f"store {store_id} is busy")
    ctx.progress(0.5, "page 3 of 6")
    return Store(store_id, pages=3 * depth)


def main(url: str) -> None:
    """Submit the task, run a worker until there is nothing left to do, and tell what happened."""
    with postroad.connect(url) as backend:
        producer = TaskProducer(backend)
        handle = producer.options(request_id="store-7").submit(scrape, store_id="s7")
        again = producer.options(request_id="store-7").submit(scrape, store_id="s7")
        print(f"submitted {handle.request_id}; the same request again is a new run: {again.created}")

        TaskWorker(backend).run(until_idle=True)  # or, in another terminal: postroad worker --load shop

        for event in producer.history(handle.request_id):
            print(f"{event.event_type:26} {event.properties.get('error', '')}")
        print(f"the result: {handle.wait(timeout=10)}")


# Children import this file to find the task, so what starts it stands behind this line.
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"sqlite:///{directory}/shop.db")
