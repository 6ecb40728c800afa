"""A task that runs in a process of its own, fails twice, and completes at the third attempt.

Run it: python examples/08_task_worker.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import postroad
from postroad.tasks import Retryable, TaskContext, TaskProducer, TaskWorker, task


@task("scrape-store", timeout=30)
def scrape_store(input: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
    """Fetch a store's pages; the first two attempts find it busy."""
    ctx.activity("step_running", "pages")
    if ctx.attempt < 3:
        raise Retryable(f"store {input['store']} is busy", category="rate-limit")
    return {"store": input["store"], "pages": 12, "attempt": ctx.attempt}


def main() -> None:
    """Submit the task, run a worker until there is nothing left to do, and tell what happened."""
    with tempfile.TemporaryDirectory() as folder, postroad.connect(f"sqlite:///{Path(folder) / 'shop.db'}") as backend:
        producer = TaskProducer(backend)
        handle = producer.submit("scrape-store", {"store": 7}, request_id="store-7")
        again = producer.submit("scrape-store", {"store": 7}, request_id="store-7")
        print(f"submitted {handle.request_id}; the same request again is a new run: {again.created}")

        TaskWorker(backend, retry_base=0.05).run(until_idle=True)

        for event in producer.history(handle.request_id):
            print(f"{event.event_type:26} {event.properties.get('error', '')}")
        state = producer.status(handle.request_id)
        assert state is not None
        print(f"{state.state} after {state.attempt} attempts: {state.output}")


# Children import this file to find the task, so what starts it stands behind this line.
if __name__ == "__main__":
    main()
