"""Which shards a worker may hold: a pure decision that every adapter shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from postroad.errors import InvalidInput
from postroad.streams.port import ShardLease


def share(shards: Sequence[str], held: Mapping[str, str], *, worker: str, workers: Collection[str]) -> list[str]:
    """The shards for `worker` now: its own first, then free ones, up to an equal part rounded up.

    `held` names the worker of each shard whose lease is not over; `workers` are those seen alive. A worker that holds
    more than its part gives the rest back here, so that a newcomer finds it free at its next call.
    """
    crowd = len({worker, *workers})
    fair = -(-len(shards) // crowd)
    mine = [shard for shard in shards if held.get(shard) == worker]
    free = [shard for shard in shards if shard not in held]
    return (mine + free)[:fair]


def check_own(lease: object, shard: str) -> None:
    """Refuse a checkpoint of one shard under the lease of another."""
    if lease is None:
        return
    if not isinstance(lease, ShardLease):
        raise InvalidInput(
            f"lease: {type(lease).__name__} is not a ShardLease",
            field="lease",
            remedy="Give one that lease() returned.",
        )
    if lease.shard != shard:
        raise InvalidInput(f"lease: is for {lease.shard!r}, not for {shard!r}", field="lease")
