"""Streams on Kinesis keep the rules of streams, with positions and leases in items."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.memory import memory_items

from postroad.clock import SYSTEM_CLOCK
from postroad.connections.aws import AwsConnection
from postroad.streams import Stream
from postroad.streams.kinesis import KinesisStreams
from postroad.testing.streams import StreamConformance, StreamFixture

pytestmark = pytest.mark.aws


class TestStreamsOnMinistack(StreamConformance):
    known_differences = {
        "test_records_older_than_the_retention_vanish_and_the_rest_stays": "Kinesis keeps records for at least a day",
        "test_sequences_go_on_growing_when_all_records_have_vanished": "Kinesis keeps records for at least a day",
    }

    @pytest.fixture
    def ground(self, aws: AwsConnection, unique: Callable[[str], str]) -> StreamFixture:
        streams = KinesisStreams(aws, memory_items(), SYSTEM_CLOCK)
        suffix = unique("")

        def open_stream(name: str, *, shards: int = 4, retention: float = 86_400) -> Stream:
            renamed = name + suffix if 0 < len(name) <= 100 else name
            return streams.stream(renamed, shards=shards, retention=retention)

        return StreamFixture(open=open_stream, advance=time.sleep)
