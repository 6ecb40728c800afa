"""The conformance suite of streams: a new adapter is a subclass with the fixture `ground`."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any, cast

import pytest

from postroad.errors import ConfigurationError, InvalidInput, InvalidName, StreamNotFound
from postroad.streams import LATEST, TRIM_HORIZON, Record, ShardLease, Stream, StreamRecord
from postroad.testing.conformance import Suite, all_refuse, json_bytes, refuses, soon

MEBIBYTE = 1_048_576
SECONDS = 1.5
"""The length of a lease: enough for a few calls to an emulator, and short enough to sleep through."""
Advance = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFixture:
    """A store without streams.

    Attributes:
        open: Opens a stream, as `backend.stream(name, shards=4, retention=86_400)` does.
        advance: Lets the given number of seconds pass.
        transaction: `backend.transaction()`, where the traits say that writes are joined.
    """

    open: Callable[..., Stream]
    advance: Advance
    transaction: Callable[[], AbstractContextManager[None]] | None = None


class StreamConformance(Suite):
    """Every promise of `Stream`."""

    @pytest.fixture
    def advance(self, ground: StreamFixture) -> Advance:
        return ground.advance

    @pytest.fixture
    def stream(self, ground: StreamFixture) -> Stream:
        return ground.open("orders")

    @pytest.fixture
    def narrow(self, ground: StreamFixture) -> Stream:
        return ground.open("narrow", shards=1)

    def test_a_stream_has_as_many_shards_as_it_was_made_with_and_is_the_same_when_opened_again(
        self, ground: StreamFixture
    ) -> None:
        stream = ground.open("orders", shards=3)
        stream.put([Record("k", b"kept")])

        again = ground.open("orders", shards=3)

        assert len(set(stream.shards())) == 3
        assert again.shards() == stream.shards()
        assert [record.data for record in _all(again)] == [b"kept"]

    def test_any_json_text_arrives_unchanged(self, narrow: Stream) -> None:
        values = json_bytes()

        results = narrow.put([Record("k", value) for value in values])

        assert all(result.ok for result in results)
        assert [record.data for record in _all(narrow)] == values

    def test_another_number_of_shards_is_refused_naming_both(self, ground: StreamFixture) -> None:
        ground.open("orders", shards=2)

        with refuses(ConfigurationError, "shards", match=r"2.*3"):
            ground.open("orders", shards=3)

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "a" * 129])
    def test_a_name_that_kinesis_would_refuse_is_refused(self, ground: StreamFixture, name: str) -> None:
        with pytest.raises(InvalidName):
            ground.open(name)

    @pytest.mark.parametrize(("shards", "retention"), [(0, 86_400), (-1, 86_400), (True, 86_400), (1, 0), (1, -5)])
    def test_a_stream_that_cannot_be_is_refused(self, ground: StreamFixture, shards: int, retention: float) -> None:
        with pytest.raises(ConfigurationError):
            ground.open("orders", shards=shards, retention=retention)

    def test_records_come_back_where_the_result_says(self, stream: Stream) -> None:
        records = [Record(f"key-{n}", b"%d" % n) for n in range(8)]

        results = stream.put(records)

        found = {(r.shard, r.sequence): (r.key, r.data) for shard in stream.shards() for r in _read(stream, shard)}
        assert found == {(p.shard, p.sequence): (r.key, r.data) for p, r in zip(results, records, strict=True)}
        assert all(result.ok for result in results)

    @pytest.mark.parametrize("data", [b"", b"\x00\xff\n", bytes(range(256)), bytes(MEBIBYTE)])
    def test_data_comes_back_byte_for_byte(self, narrow: Stream, data: bytes) -> None:
        narrow.put([Record("k", data)])

        assert [record.data for record in _all(narrow)] == [data]

    def test_a_key_may_be_any_text_of_256_characters(self, narrow: Stream) -> None:
        keys = ["k", "é漢😀", "with space", "k" * 256]

        narrow.put([Record(key, b"x") for key in keys])

        assert [record.key for record in _all(narrow)] == keys

    def test_an_arrival_is_an_aware_moment_and_never_goes_back_within_a_shard(
        self, narrow: Stream, advance: Advance
    ) -> None:
        narrow.put([Record("k", b"1")])
        advance(1.0)
        narrow.put([Record("k", b"2"), Record("k", b"3")])

        arrivals = [record.arrived_at for record in _all(narrow)]

        assert arrivals == sorted(arrivals)
        assert arrivals[-1] - arrivals[0] >= timedelta(seconds=0.9)
        assert {arrival.tzinfo for arrival in arrivals} == {UTC}

    def test_records_of_one_key_keep_their_order_in_one_shard(self, stream: Stream) -> None:
        results = stream.put([Record("k", b"%d" % n) for n in range(6)])
        results += stream.put([Record("k", b"%d" % n) for n in range(6, 9)])

        assert len({result.shard for result in results}) == 1
        assert [record.data for record in _read(stream, results[0].shard)] == [b"%d" % n for n in range(9)]

    def test_keys_are_spread_over_the_shards_as_kinesis_spreads_them(self, stream: Stream) -> None:
        results = stream.put([Record(key, b"x") for key in ("a", "b", "c", "d", "e", "f")])

        places = [stream.shards().index(result.shard or "") for result in results]
        assert places == [0, 2, 1, 2, 3, 2]

    def test_sequences_grow_within_a_shard(self, narrow: Stream) -> None:
        for n in range(4):
            narrow.put([Record(f"k{n}", b"x")])

        sequences = [(len(record.sequence), record.sequence) for record in _all(narrow)]

        assert sequences == sorted(set(sequences))
        assert len(sequences) == 4

    def test_a_read_goes_on_behind_a_sequence(self, narrow: Stream) -> None:
        narrow.put([Record("k", b"%d" % n) for n in range(5)])
        (shard,) = narrow.shards()

        first = narrow.read(shard, after=TRIM_HORIZON, limit=2)
        second = narrow.read(shard, after=first[-1].sequence, limit=2)
        third = narrow.read(shard, after=second[-1].sequence, limit=2)

        assert [[r.data for r in page] for page in (first, second, third)] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
        assert narrow.read(shard, after=third[-1].sequence) == []

    def test_an_empty_batch_puts_nothing_and_reading_changes_nothing(self, narrow: Stream) -> None:
        assert narrow.put([]) == []
        assert _all(narrow) == []

        narrow.put([Record("k", b"x")])

        assert _all(narrow) == _all(narrow) != []

    def test_what_comes_later_lies_behind_the_place_that_latest_gives(self, narrow: Stream) -> None:
        [shard] = narrow.shards()
        narrow.put([Record("k", b"before")])
        place = narrow.latest(shard)

        before = narrow.read(shard, after=place)
        narrow.put([Record("k", b"first"), Record("k", b"second")])
        read = narrow.read(shard, after=place, wait=5)

        assert before == []
        assert [record.data for record in read][:1] == [b"first"]

    def test_latest_gives_only_what_comes_from_now_on(self, narrow: Stream) -> None:
        narrow.put([Record("k", b"before")])
        (shard,) = narrow.shards()

        assert narrow.read(shard, after=LATEST) == []
        with soon(lambda: narrow.put([Record("k", b"behind")])):
            assert [record.data for record in narrow.read(shard, after=LATEST, wait=10)] == [b"behind"]

    def test_a_waiting_read_returns_as_soon_as_there_is_a_record(self, narrow: Stream) -> None:
        (shard,) = narrow.shards()
        began = time.monotonic()

        with soon(lambda: narrow.put([Record("k", b"x")])):
            found = narrow.read(shard, after=TRIM_HORIZON, wait=15)

        assert [record.data for record in found] == [b"x"]
        assert time.monotonic() - began < 10

    def test_a_waiting_read_of_nothing_returns_after_its_wait(self, narrow: Stream) -> None:
        (shard,) = narrow.shards()
        began = time.monotonic()

        assert narrow.read(shard, after=TRIM_HORIZON, wait=0.3) == []
        assert time.monotonic() - began >= 0.29

    def test_records_older_than_the_retention_vanish_and_the_rest_stays(self, ground: StreamFixture) -> None:
        stream = ground.open("short", shards=1, retention=2)
        (shard,) = stream.shards()
        (old,) = stream.put([Record("k", b"old")])
        ground.advance(1.5)
        stream.put([Record("k", b"young")])

        ground.advance(1.0)

        assert [record.data for record in _all(stream)] == [b"young"]
        assert [record.data for record in stream.read(shard, after=old.sequence or "")] == [b"young"]

    def test_sequences_go_on_growing_when_all_records_have_vanished(self, ground: StreamFixture) -> None:
        stream = ground.open("short", shards=1, retention=1)
        (old,) = stream.put([Record("k", b"old")])
        ground.advance(1.5)

        (new,) = stream.put([Record("k", b"new")])

        assert (new.sequence or "") > (old.sequence or "")
        assert [record.data for record in _all(stream)] == [b"new"]

    @pytest.mark.parametrize(
        ("field", "record"),
        [
            ("records[1].key", Record("", b"x")),
            ("records[1].key", Record("k" * 257, b"x")),
            ("records[1].key", Record("\ud800", b"x")),
            ("records[1].data", Record("k", bytes(MEBIBYTE + 1))),
            ("records[1]", b"x"),
            ("records[1].data", Record("k", "text")),  # type: ignore[arg-type]  # what a careless caller passes
        ],
    )
    def test_a_record_that_breaks_a_limit_refuses_the_batch(self, narrow: Stream, field: str, record: Record) -> None:
        with refuses(InvalidInput, field):
            narrow.put([Record("good", b"x"), record])

        assert _all(narrow) == []

    @pytest.mark.parametrize("records", [5, None, "text", iter([Record("k", b"x")])])
    def test_what_is_no_list_of_records_is_refused(self, narrow: Stream, records: Any) -> None:
        with refuses(InvalidInput, "records"):
            narrow.put(records)

        assert _all(narrow) == []

    def test_a_checkpoint_under_what_is_no_lease_is_refused(self, narrow: Stream) -> None:
        (result,) = narrow.put([Record("k", b"x")])
        (shard,) = narrow.shards()

        with refuses(InvalidInput, "lease"):
            narrow.checkpoint("billing", shard, result.sequence or "", lease=cast("ShardLease", 5))

        assert narrow.position("billing", shard) is None

    @pytest.mark.parametrize(
        ("field", "after", "limit", "wait"),
        [
            ("after", "yesterday", 1, 0.0),
            ("after", "", 1, 0.0),
            ("limit", TRIM_HORIZON, 0, 0.0),
            ("limit", TRIM_HORIZON, 10_001, 0.0),
            ("wait", TRIM_HORIZON, 1, -1.0),
            ("wait", TRIM_HORIZON, 1, 21.0),
        ],
    )
    def test_a_read_that_cannot_be_is_refused(
        self, narrow: Stream, field: str, after: str, limit: int, wait: float
    ) -> None:
        (shard,) = narrow.shards()

        with refuses(InvalidInput, field):
            narrow.read(shard, after=after, limit=limit, wait=wait)

    def test_a_shard_that_is_none_is_not_found(self, narrow: Stream) -> None:
        (result,) = narrow.put([Record("k", b"x")])
        attempts: list[Callable[[], object]] = [
            lambda: narrow.read("nowhere", after=TRIM_HORIZON),
            lambda: narrow.checkpoint("billing", "nowhere", result.sequence or ""),
            lambda: narrow.position("billing", "nowhere"),
        ]

        for attempt in attempts:
            with pytest.raises(StreamNotFound, match="nowhere"):
                attempt()

    @pytest.mark.parametrize("shard", [5, None, [], b"shardId-000000000000"])
    def test_what_is_no_name_of_a_shard_is_refused(self, narrow: Stream, shard: Any) -> None:
        (result,) = narrow.put([Record("k", b"x")])

        all_refuse(
            InvalidInput,
            "shard",
            lambda: narrow.read(shard, after=TRIM_HORIZON),
            lambda: narrow.latest(shard),
            lambda: narrow.checkpoint("billing", shard, result.sequence or ""),
            lambda: narrow.position("billing", shard),
            match="is not the name of a shard",
        )

        assert narrow.position("billing", narrow.shards()[0]) is None

    def test_a_checkpoint_is_found_again_by_its_consumer_and_no_other(self, stream: Stream) -> None:
        (result,) = stream.put([Record("k", b"x")])
        shard, sequence = result.shard or "", result.sequence or ""
        other = next(name for name in stream.shards() if name != shard)

        assert stream.checkpoint("billing", shard, sequence)

        assert stream.position("billing", shard) == sequence
        assert stream.position("billing", other) is None
        assert stream.position("audit", shard) is None

    def test_a_position_never_goes_back(self, narrow: Stream) -> None:
        first, second = narrow.put([Record("k", b"1"), Record("k", b"2")])
        (shard,) = narrow.shards()

        narrow.checkpoint("billing", shard, second.sequence or "")
        narrow.checkpoint("billing", shard, first.sequence or "")

        assert narrow.position("billing", shard) == second.sequence

    def test_threads_that_put_at_once_lose_nothing_and_keep_each_keys_order(self, stream: Stream) -> None:
        def put(thread: int) -> None:
            for n in range(5):
                stream.put([Record(f"key-{thread}", b"%d" % (2 * n)), Record(f"key-{thread}", b"%d" % (2 * n + 1))])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(put, range(4)))

        found: dict[str, list[bytes]] = {}
        for record in _all(stream):
            found.setdefault(record.key, []).append(record.data)
        assert found == {f"key-{thread}": [b"%d" % n for n in range(10)] for thread in range(4)}

    def test_a_put_and_a_checkpoint_of_one_transaction_happen_together_or_not_at_all(
        self, ground: StreamFixture
    ) -> None:
        source, sink = ground.open("source", shards=1), ground.open("sink", shards=1)
        if ground.transaction is None:
            assert not source.traits.joins_writes
            pytest.skip("the traits say that writes are not joined")
        first, second = source.put([Record("k", b"1"), Record("k", b"2")])
        (shard,) = source.shards()

        with ground.transaction():
            sink.put([Record("k", b"row 1")])
            source.checkpoint("billing", shard, first.sequence or "")
        with suppress(ZeroDivisionError), ground.transaction():
            sink.put([Record("k", b"row 2")])
            source.checkpoint("billing", shard, second.sequence or "")
            raise ZeroDivisionError

        assert [record.data for record in _all(sink)] == [b"row 1"]
        assert source.position("billing", shard) == first.sequence

    def test_a_worker_alone_has_all_shards_of_its_consumer_and_keeps_them_by_renewing(self, stream: Stream) -> None:
        leases = stream.lease("billing", "w1", seconds=10)

        assert _shards(leases) == stream.shards()
        assert {lease.worker for lease in leases} == {"w1"}
        assert len(stream.lease("audit", "w2", seconds=10)) == 4
        assert stream.lease("billing", "w1", seconds=10) == leases

    def test_a_newcomer_gets_its_part_after_the_others_next_renewal(self, stream: Stream) -> None:
        stream.lease("billing", "w1", seconds=SECONDS)
        newcomer = stream.lease("billing", "w2", seconds=SECONDS)

        first = _shards(stream.lease("billing", "w1", seconds=SECONDS))
        second = _shards(stream.lease("billing", "w2", seconds=SECONDS))

        assert newcomer == []
        assert (len(first), len(second)) == (2, 2)
        assert sorted(first + second) == stream.shards()

    def test_a_worker_too_many_waits_with_empty_hands(self, narrow: Stream) -> None:
        held = narrow.lease("billing", "w1", seconds=SECONDS)
        spare = narrow.lease("billing", "w2", seconds=SECONDS)

        assert (len(held), spare) == (1, [])
        assert narrow.lease("billing", "w1", seconds=SECONDS) == held

    def test_a_dead_workers_shards_are_taken_over_with_larger_tokens(self, stream: Stream, advance: Advance) -> None:
        dead = stream.lease("billing", "w1", seconds=SECONDS)
        advance(SECONDS + 0.2)

        taken = stream.lease("billing", "w2", seconds=SECONDS)

        assert _shards(taken) == stream.shards()
        assert all(new.token > old.token for old, new in zip(dead, taken, strict=True))

    def test_a_renewed_lease_is_not_taken_over_early(self, narrow: Stream, advance: Advance) -> None:
        held = narrow.lease("billing", "w1", seconds=4)
        advance(1.0)
        narrow.lease("billing", "w1", seconds=4)
        advance(1.0)

        assert narrow.lease("billing", "w2", seconds=SECONDS) == []
        assert narrow.lease("billing", "w1", seconds=4) == held

    def test_a_checkpoint_takes_effect_under_a_held_lease_and_not_under_one_that_was_taken_over_or_forged(
        self, narrow: Stream, advance: Advance
    ) -> None:
        (result,) = narrow.put([Record("k", b"x")])
        (stale,) = narrow.lease("billing", "w1", seconds=SECONDS)
        advance(SECONDS + 0.2)
        (lease,) = narrow.lease("billing", "w2", seconds=10)
        forged = ShardLease(shard=lease.shard, worker="w1", token=lease.token + 7)

        for wrong in (stale, forged):
            assert not narrow.checkpoint("billing", lease.shard, result.sequence or "", lease=wrong)
            assert narrow.position("billing", lease.shard) is None
        assert narrow.checkpoint("billing", lease.shard, result.sequence or "", lease=lease)
        assert narrow.position("billing", lease.shard) == result.sequence

    def test_a_checkpoint_under_the_lease_of_another_shard_is_refused(self, stream: Stream) -> None:
        (result,) = stream.put([Record("k", b"x")])
        leases = stream.lease("billing", "w1", seconds=10)
        wrong = next(lease for lease in leases if lease.shard != result.shard)

        with refuses(InvalidInput, "lease"):
            stream.checkpoint("billing", result.shard or "", result.sequence or "", lease=wrong)

    @pytest.mark.parametrize(
        ("field", "consumer", "worker", "seconds"),
        [("consumer", "", "w1", 1.0), ("worker", "billing", "a b", 1.0), ("seconds", "billing", "w1", 0.0)],
    )
    def test_a_lease_that_cannot_be_is_refused(
        self, narrow: Stream, field: str, consumer: str, worker: str, seconds: float
    ) -> None:
        with refuses(InvalidInput, field):
            narrow.lease(consumer, worker, seconds=seconds)


def _read(stream: Stream, shard: str | None) -> list[StreamRecord]:
    found: list[StreamRecord] = []
    after = TRIM_HORIZON
    while page := stream.read(shard or "", after=after):
        found += page
        after = page[-1].sequence
    return found


def _all(stream: Stream) -> list[StreamRecord]:
    return [record for shard in stream.shards() for record in _read(stream, shard)]


def _shards(leases: list[ShardLease]) -> list[str]:
    return [lease.shard for lease in leases]
