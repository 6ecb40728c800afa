from __future__ import annotations

import functools

import pytest

from postroad.streams.memory import MemoryStreams
from postroad.testing.clock import FakeClock
from postroad.testing.streams import StreamConformance, StreamGround


class TestMemoryStreams(StreamConformance):
    @pytest.fixture
    def ground(self) -> StreamGround:
        clock = FakeClock()
        return StreamGround(
            open=functools.partial(MemoryStreams(clock).stream, shards=4, retention=86_400), advance=clock.advance
        )
