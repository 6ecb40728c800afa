"""One store after another, and an application's database with an outbox and an inbox."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.aws.conftest import _credentials, ministack_url
from tests.platform.events import OrderPlaced, Shop

import postroad
from postroad import Backend
from postroad.inbox import Inbox
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher

__all__ = ["_credentials", "ministack_url"]
Dispatch = Callable[[str], OutboxDispatcher]


@pytest.fixture(params=["memory", "sqlite", pytest.param("aws", marks=[pytest.mark.aws, pytest.mark.slow])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store."""
    if request.param == "aws":
        return f"aws://us-east-1?endpoint_url={request.getfixturevalue('ministack_url')}"
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'events.db'}"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as backend:
        yield backend


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"orders-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


@pytest.fixture
def outbox(shop: Shop) -> Iterator[Outbox]:
    with closing(Outbox.sqlite(str(shop.path))) as outbox:
        outbox.init()
        yield outbox


@pytest.fixture
def inbox(shop: Shop) -> Iterator[Inbox]:
    with closing(Inbox.sqlite(str(shop.path))) as inbox:
        inbox.init()
        yield inbox


@pytest.fixture
def place(shop: Shop, outbox: Outbox) -> Callable[..., None]:
    """Record orders in the outbox, as an application does."""

    def place(*orders: OrderPlaced, key: str | None = None) -> None:
        with closing(sqlite3.connect(shop.path, timeout=30)) as connection, connection:
            for order in orders:
                outbox.add(connection, order, key=key or order.order_id)

    return place


@pytest.fixture
def dispatch(backend: Backend, outbox: Outbox) -> Callable[..., OutboxDispatcher]:
    """Make a dispatcher to a topic."""

    def dispatch(topic: str, *, fifo: bool = False) -> OutboxDispatcher:
        target = backend.topic(topic, fifo=fifo)
        return OutboxDispatcher(outbox, target, DispatcherConfig(poll=0.05, target_pause=0.1), service="shop")

    return dispatch
