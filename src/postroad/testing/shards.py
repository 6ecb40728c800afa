"""The rules of shard leases: workers share the shards of a stream; part of `StreamConformance`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroad.errors import InvalidInput
from postroad.streams import Record, ShardLease, Stream
from postroad.testing.conformance import refuses

Advance = Callable[[float], None]
SECONDS = 1.5
"""The length of a lease: enough for a few calls to an emulator, and short enough to sleep through."""


class ShardLeaseRules:
    """The promises of `lease`, and of a checkpoint under one."""

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


def _shards(leases: list[ShardLease]) -> list[str]:
    return [lease.shard for lease in leases]
