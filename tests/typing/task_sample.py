"""How a type checker sees tasks and their handles; `make test` lets mypy and pyright read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from postroad import TaskProducer, task
from postroad.tasks import TaskContext, TaskHandle


@dataclass(frozen=True)
class Store:
    id: str


@task
def scrape(store_id: str, depth: int = 2) -> Store:
    return Store(store_id)


@task(max_attempts=4, retry_on=(ConnectionError,), never_retry=ValueError, timeout="5m", retry_cap=30, queue="slow")
async def download(ctx: TaskContext, url: str) -> bytes:
    return url.encode()


@task("resize")
def resize(ctx: TaskContext, width: int, *, height: int = 1) -> int:
    return width * height


@task
def count(store_id: str, ctx: TaskContext | None = None) -> int:
    return 1


@task
def legacy(input: dict[str, Any], ctx: TaskContext) -> list[int]:
    return [1]


async def submit(producer: TaskProducer) -> None:
    """Submit each of them."""
    assert_type(scrape("s1"), Store)
    assert_type(producer.submit(scrape, store_id="s1"), TaskHandle[Store])
    assert_type(producer.submit(scrape, "s1", depth=3).wait(), Store)
    assert_type(producer.submit(scrape, "s1").wait(timeout=1.5), Store)
    assert_type(producer.submit(download, url="x").wait(), bytes)
    assert_type(producer.submit(resize, 5, height=2).wait(), int)
    assert_type(producer.submit(count, store_id="s1").wait(), int)
    assert_type(producer.submit(legacy, {"a": 1}).wait(), list[int])
    assert_type(producer.submit("scrape", {"store_id": "s1"}), TaskHandle[Any])
    assert_type(producer.options(delay="2h", request_id="r1").submit(scrape, "s1"), TaskHandle[Store])
    assert_type(await producer.asubmit(scrape, "s1"), TaskHandle[Store])
    assert_type(await (await producer.asubmit(download, url="x")), bytes)
    assert_type(await producer.submit(resize, 5), int)
    assert_type(producer.submit_many([(scrape, {"store_id": "s1"}), ("scrape", {}, "r1")]), list[TaskHandle[Any]])
    assert_type(producer.submit(scrape, "s1").cancel(), bool)
