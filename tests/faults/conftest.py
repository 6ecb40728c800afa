"""Emulated AWS behind a proxy that breaks its calls, and databases and dispatchers for faults of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.aws.conftest import _credentials, aws, ministack_url, moto_url, unique
from tests.outbox.conftest import on_postgres
from tests.outbox.dispatching.conftest import dispatcher_of, recorder
from tests.postgres import postgres, postgres_dsn

from postroad.testing import FaultProxy

__all__ = [
    "_credentials",
    "aws",
    "dispatcher_of",
    "ministack_url",
    "moto_url",
    "on_postgres",
    "postgres",
    "postgres_dsn",
    "recorder",
    "unique",
]


@pytest.fixture
def proxy(ministack_url: str) -> Iterator[FaultProxy]:
    """A proxy before ministack."""
    with FaultProxy(ministack_url) as running:
        yield running
