from __future__ import annotations

import pytest

from postroad.streams.leases import share
from postroad.streams.port import hash_key, shard_of

SHARDS = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(("workers", "part"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 1), (9, 1)])
def test_a_share_is_an_equal_part_rounded_up(workers: int, part: int) -> None:
    names = [f"w{n}" for n in range(workers)]

    assert len(share(SHARDS, {}, worker="w0", workers=names)) == part


def test_a_worker_keeps_its_own_before_it_takes_free_ones() -> None:
    assert share(SHARDS, {"d": "me"}, worker="me", workers=["me", "you"]) == ["d", "a", "b"]


def test_a_worker_gives_back_what_is_above_its_part() -> None:
    held = dict.fromkeys(SHARDS, "me")

    assert share(SHARDS, held, worker="me", workers=["me", "you"]) == ["a", "b", "c"]


def test_a_worker_never_takes_what_another_holds() -> None:
    assert share(SHARDS, dict.fromkeys(SHARDS, "you"), worker="me", workers=["me"]) == []


def test_workers_that_renew_in_turn_end_with_every_shard_held_once() -> None:
    held: dict[str, str] = {}
    workers = ["w1", "w2", "w3"]

    for worker in workers * 3:
        mine = share(SHARDS, held, worker=worker, workers=workers)
        held = {shard: holder for shard, holder in held.items() if holder != worker} | dict.fromkeys(mine, worker)

    assert sorted(held) == SHARDS
    assert max(list(held.values()).count(worker) for worker in workers) == 2


def test_the_ranges_of_hashes_cover_all_keys_without_overlap() -> None:
    for shards in (1, 2, 3, 7, 1_000):
        assert {shard_of(f"key-{n}", shards) for n in range(200)} <= set(range(shards))
    assert hash_key("a") == 0x0CC175B9C0F1B6A831C399E269772661
