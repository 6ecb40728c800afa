from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroad.engine.engine import Engine
from postroad.errors import InvalidInput, StorageDamaged
from postroad.streams.port import TRIM_HORIZON, Record
from postroad.streams.sqlite import SQLiteStream, SQLiteStreams
from postroad.testing.clock import FakeClock
from postroad.testing.streams import StreamConformance, StreamFixture


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine(tmp_path: Path, clock: FakeClock) -> Iterator[Engine]:
    engine = Engine(tmp_path / "postroad.db", clock=clock)
    yield engine
    engine.close()


@pytest.fixture
def stream(engine: Engine) -> SQLiteStream:
    return SQLiteStreams(engine).stream("orders", shards=1, retention=60)


class TestSQLiteStreams(StreamConformance):
    @pytest.fixture
    def ground(self, engine: Engine, clock: FakeClock) -> StreamFixture:
        return StreamFixture(
            open=functools.partial(SQLiteStreams(engine).stream, shards=4, retention=86_400),
            advance=clock.advance,
            transaction=engine.transaction,
        )


def _sql(engine: Engine, sql: str) -> list[Any]:
    return engine.write(lambda tx: tx.connection.execute(sql).fetchall())


def _data(stream: SQLiteStream) -> list[bytes]:
    return [record.data for record in stream.read(stream.shards()[0], after=TRIM_HORIZON, limit=10_000)]


def test_records_positions_and_tokens_survive_a_reopening(engine: Engine, stream: SQLiteStream) -> None:
    (result,) = stream.put([Record("k", b"kept")])
    (lease,) = stream.lease("billing", "w1")
    stream.checkpoint("billing", lease.shard, result.sequence or "", lease=lease)
    engine.close()

    reopened = Engine(engine.path, clock=engine.clock)
    try:
        again = SQLiteStreams(reopened).stream("orders", shards=1, retention=60)
        assert _data(again) == [b"kept"]
        assert again.position("billing", lease.shard) == result.sequence
        assert again.lease("billing", "w1") == [lease]
    finally:
        reopened.close()


def test_after_a_reboot_all_leases_are_over_and_tokens_still_grow(
    engine: Engine, stream: SQLiteStream, clock: FakeClock
) -> None:
    clock.advance(1_000_000)
    (before,) = stream.lease("billing", "w1", seconds=3_600)
    engine.close()
    clock.reboot()

    reopened = Engine(engine.path, clock=clock)
    try:
        (after,) = SQLiteStreams(reopened).stream("orders", shards=1, retention=60).lease("billing", "w2")
        assert after.token > before.token
    finally:
        reopened.close()


def test_a_step_of_the_wall_clock_ends_no_lease(stream: SQLiteStream, clock: FakeClock) -> None:
    held = stream.lease("billing", "w1", seconds=5)

    clock.set(clock.now() + timedelta(days=1))

    assert stream.lease("billing", "w2", seconds=5) == []
    assert stream.lease("billing", "w1", seconds=5) == held


def test_arrivals_do_not_go_back_when_the_wall_clock_does(stream: SQLiteStream, clock: FakeClock) -> None:
    stream.put([Record("k", b"1")])
    clock.set(clock.now() - timedelta(seconds=30))

    stream.put([Record("k", b"2")])

    first, second = stream.read(stream.shards()[0], after=TRIM_HORIZON)
    assert second.arrived_at == first.arrived_at


def test_expired_records_are_removed_from_the_file_in_bounded_steps(
    engine: Engine, stream: SQLiteStream, clock: FakeClock
) -> None:
    for _ in range(5):
        stream.put([Record("k", b"old")] * 50)
    clock.advance(61)

    counts = []
    for _ in range(4):
        stream.put([Record("k", b"new")])
        counts.append(_sql(engine, "SELECT count(*) FROM stream_records")[0][0])

    assert counts == [151, 52, 3, 4]
    assert _data(stream) == [b"new"] * 4


def test_expired_records_are_skipped_before_they_are_removed(stream: SQLiteStream, clock: FakeClock) -> None:
    stream.put([Record("k", b"old")] * 1_000)
    clock.advance(40)
    stream.put([Record("k", b"%d" % n) for n in range(20)])

    clock.advance(30)

    assert _data(stream) == [b"%d" % n for n in range(20)]


def test_a_shard_without_new_records_is_swept_by_puts_to_others(engine: Engine, clock: FakeClock) -> None:
    stream = SQLiteStreams(engine).stream("wide", shards=4, retention=60)
    stream.put([Record(f"key-{n}", b"old") for n in range(40)])
    clock.advance(61)

    for _ in range(8):
        stream.put([Record("a", b"new")])

    assert _sql(engine, "SELECT count(*) FROM stream_records WHERE data = CAST('old' AS BLOB)")[0][0] == 0


def test_a_longer_retention_extends_it_and_a_shorter_one_takes_nothing(engine: Engine, clock: FakeClock) -> None:
    streams = SQLiteStreams(engine)
    stream = streams.stream("orders", shards=1, retention=60)
    stream.put([Record("k", b"x")])

    streams.stream("orders", shards=1, retention=600)
    streams.stream("orders", shards=1, retention=1)
    clock.advance(100)

    assert _data(stream) == [b"x"]


def test_a_damaged_record_is_noticed_and_can_be_read_past(engine: Engine, stream: SQLiteStream) -> None:
    damaged, _ = stream.put([Record("k", b"written"), Record("k", b"whole")])
    _sql(engine, "UPDATE stream_records SET data = CAST('rotten!' AS BLOB) WHERE data = CAST('written' AS BLOB)")
    (shard,) = stream.shards()

    with pytest.raises(StorageDamaged, match=damaged.sequence):
        stream.read(shard, after=TRIM_HORIZON)

    assert [record.data for record in stream.read(shard, after=damaged.sequence or "")] == [b"whole"]


def test_one_read_holds_ten_mebibytes_at_the_most(stream: SQLiteStream) -> None:
    for _ in range(12):
        stream.put([Record("k", bytes(1_048_576))])

    assert len(stream.read(stream.shards()[0], after=TRIM_HORIZON)) == 10


def test_a_sequence_of_another_shard_is_refused(engine: Engine) -> None:
    stream = SQLiteStreams(engine).stream("wide", shards=2, retention=60)
    (result,) = stream.put([Record("k", b"x")])
    other = next(name for name in stream.shards() if name != result.shard)

    with pytest.raises(InvalidInput) as refused:
        stream.checkpoint("billing", other, result.sequence or "")

    assert refused.value.field == "sequence"


def test_two_engines_on_one_file_share_streams_and_leases(engine: Engine, stream: SQLiteStream) -> None:
    other_engine = Engine(engine.path, clock=engine.clock)
    try:
        other = SQLiteStreams(other_engine).stream("orders", shards=1, retention=60)
        stream.put([Record("k", b"x")])

        assert _data(other) == [b"x"]
        assert len(stream.lease("billing", "w1")) == 1
        assert other.lease("billing", "w2") == []
    finally:
        other_engine.close()


def test_a_waiting_read_is_woken_by_a_put_of_another_engine(engine: Engine, stream: SQLiteStream) -> None:
    other_engine = Engine(engine.path, clock=engine.clock)
    other = SQLiteStreams(other_engine).stream("orders", shards=1, retention=60)
    put = threading.Timer(0.2, other.put, [[Record("k", b"x")]])
    began = time.monotonic()

    put.start()
    found = stream.read(stream.shards()[0], after=TRIM_HORIZON, wait=15)
    put.join()
    other_engine.close()

    assert [record.data for record in found] == [b"x"]
    assert time.monotonic() - began < 14
