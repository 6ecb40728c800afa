"""Tasks with ordinary typed arguments, for tests. Workers import this module by its name."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pydantic

from postroad.tasks import NonRetryable, Retryable, TaskContext, task


@dataclass(frozen=True)
class Page:
    """A part of a store."""

    url: str
    seen_at: datetime


class Price(msgspec.Struct, frozen=True):
    """What something costs."""

    amount: Decimal
    currency: str = "EUR"


class Owner(pydantic.BaseModel):
    """Who has a store."""

    name: str
    since: datetime


@dataclass(frozen=True)
class Store:
    """The result of a task."""

    store_id: str
    depth: int
    pages: list[Page]
    price: Price | None = None


class Shaky(Exception):
    """An error that another attempt may get over."""


class Shakier(Shaky):
    """An error that no attempt gets over, although its parent may be."""


@task
def scrape(store_id: str, depth: int = 2, *, pages: list[Page] | None = None, price: Price | None = None) -> Store:
    return Store(store_id, depth, pages or [], price)


@task("everything")
def take_everything(at: datetime, amount: Decimal, id: UUID, owner: Owner, owners: list[Owner]) -> Owner:
    assert all(isinstance(each, Owner) for each in owners)
    return Owner(name=f"{owner.name} {amount} {id}", since=at)


@task("with-context")
def with_context(ctx: TaskContext, store_id: str) -> list[Any]:
    return [ctx.request_id, ctx.attempt, store_id]


@task("late-context")
def late_context(store_id: str, *, context: TaskContext) -> list[Any]:
    return [context.name, store_id]


@task("further")
def further(first: int, **others: float) -> dict[str, float]:
    return {"first": first, **others}


@task("slowly")
async def slowly(seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "done"


@task("no-arguments")
def no_arguments() -> None: ...


@task("untyped-sum")
def add(a, b):  # type: ignore[no-untyped-def]  # as users write them
    return a + b


@task("other-result")
def other_result() -> int:
    return "text"  # type: ignore[return-value]  # it breaks its promise


@task("elsewhere", queue="slow")
def elsewhere(n: int) -> int:
    return n * 2


@task("choosy", max_attempts=3, retry_on=(Shaky,), never_retry=(Shakier, ConnectionError), retry_base=0, retry_cap=0)
def choosy(notes: str, error: str) -> int:
    """Fail until the second attempt."""
    tried = _noted(notes)
    if tried == 1:
        known = {"shaky": Shaky, "shakier": Shakier, "network": ConnectionError, "value": ValueError}
        errors = [known[each](each) for each in error.split("+")]
        raise errors[0] if len(errors) == 1 else ExceptionGroup("several", errors)
    return tried


@task("asks-for-time", max_attempts=2)
def asks_for_time(notes: str, after: float) -> int:
    tried = _noted(notes)
    if tried == 1:
        raise Retryable("not yet", after=after)
    return tried


@task("asks-in-between", max_attempts=2, retry_on=(Shaky,), retry_base=0, retry_cap=0)
def asks_in_between(notes: str, after: float) -> int:
    """Fail with an error of its own that hides when to try again."""
    try:
        return asks_for_time(notes, after)
    except Retryable as error:
        raise Shaky("not yet") from error


@task("decided", retry_on=(Exception,), max_attempts=3)
def decided(notes: str) -> int:
    _noted(notes)
    raise NonRetryable("never")


@task("paced", max_attempts=2, retry_on=(Shaky,), retry_base="40s", retry_cap="41s")
def paced() -> None:
    raise Shaky


@task("fails-below")
def fails_below(n: int) -> None:
    json.loads("{" * n)


def _noted(notes: str) -> int:
    """Note an attempt, and return its number."""
    with Path(notes).open("a") as file:
        file.write(f"{datetime.now(UTC).isoformat()}\n")
    return len(Path(notes).read_text().splitlines())
