from __future__ import annotations

import functools

import pytest
from tests.memory import memory_store

from postroad.testing.clock import FakeClock
from postroad.testing.streams import StreamConformance, StreamFixture


class TestMemoryStreams(StreamConformance):
    @pytest.fixture
    def ground(self) -> StreamFixture:
        clock = FakeClock()
        store = memory_store(clock)
        return StreamFixture(
            open=functools.partial(store.streams.stream, shards=4, retention=86_400),
            advance=clock.advance,
            transaction=store.transaction,
        )
