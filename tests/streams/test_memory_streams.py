from __future__ import annotations

import functools

import pytest
from tests.memory import memory_store

from postroad.testing.clock import FakeClock
from postroad.testing.streams import StreamConformance, StreamGround


class TestMemoryStreams(StreamConformance):
    @pytest.fixture
    def ground(self) -> StreamGround:
        clock = FakeClock()
        store = memory_store(clock)
        return StreamGround(
            open=functools.partial(store.streams.stream, shards=4, retention=86_400),
            advance=clock.advance,
            transaction=store.transaction,
        )
