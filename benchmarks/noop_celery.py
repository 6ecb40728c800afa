"""The same task for celery, which finds this module by its name and Redis by a variable."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("noop", broker=os.environ["BENCH_REDIS"], backend=os.environ["BENCH_REDIS"])
app.conf.update(worker_prefetch_multiplier=4, task_acks_late=False, broker_connection_retry_on_startup=True)


@app.task(name="noop")  # type: ignore[untyped-decorator]  # celery has no types
def noop() -> int:
    return os.getpid()
