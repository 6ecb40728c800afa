"""The same task for dramatiq, which finds this module by its name and Redis by a variable."""

from __future__ import annotations

import os

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

DONE = "bench:done"
broker = RedisBroker(url=os.environ["BENCH_REDIS"])  # type: ignore[no-untyped-call]  # dramatiq types its edges only
dramatiq.set_broker(broker)
_redis = redis.Redis.from_url(os.environ["BENCH_REDIS"])


@dramatiq.actor
def noop() -> None:
    _redis.rpush(DONE, os.getpid())
