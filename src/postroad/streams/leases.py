"""Leases of shards and positions in them: the rules that all adapters share, and both stored as items."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from postroad.clock import Clock
from postroad.errors import InvalidInput, Unavailable
from postroad.items import ABSENT, ANY, Item, Items
from postroad.streams.port import ShardLease


def share(shards: Sequence[str], held: Mapping[str, str], *, worker: str, workers: Collection[str]) -> list[str]:
    """Return the shards for `worker` now: its own first, then free ones, up to an equal part rounded up.

    `held` names the worker of each shard whose lease is not over; `workers` are those seen alive. A worker that holds
    more than its part gives the rest back here, so that a new worker finds it free at its next call.
    """
    fair = -(-len(shards) // len({worker, *workers}))
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


_TRIES = 20


class ShardState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lease and position of one shard for one consumer. `until` is in seconds of the wall clock."""

    worker: str = ""
    token: int = 0
    until: float = 0.0
    sequence: str | None = None
    drained: bool = False


Change = Callable[[ShardState], ShardState | None]


class ItemLeases:
    """Which worker reads which shard of a stream, and up to where, stored as items."""

    def __init__(self, items: Items, clock: Clock, stream: str) -> None:
        self._items = items
        self._clock = clock
        self._prefix = f"postroad/streams/{stream}"

    def state(self, consumer: str, shard: str) -> ShardState:
        return _read(self._items.get(f"{self._prefix}/{consumer}/shards/{shard}"))

    def checkpoint(self, consumer: str, shard: str, sequence: str, lease: ShardLease | None) -> bool:
        """Move the position forward, unless the lease is no longer held."""

        def forward(state: ShardState) -> ShardState | None:
            if lease is not None and (
                (state.worker, state.token) != (lease.worker, lease.token) or state.until <= self._now()
            ):
                return None
            if state.sequence is not None and int(sequence) <= int(state.sequence):
                return state
            return msgspec.structs.replace(state, sequence=sequence)

        return self._change(consumer, shard, forward) is not None

    def mark_drained(self, consumer: str, shard: str) -> None:
        """Store that the consumer has read the closed shard to its end."""
        self._change(consumer, shard, lambda state: msgspec.structs.replace(state, drained=True))

    def workers(self, consumer: str, *, forget: bool = False) -> list[str]:
        """Return the workers that asked for shards lately; with `forget`, remove those whose time has run out."""
        now, prefix = self._now(), self._worker_key(consumer, "")
        alive: list[str] = []
        cursor: str | None = None
        while True:
            page = self._items.scan(prefix, cursor=cursor)
            for item in page.items:
                if msgspec.json.decode(item.value, type=float) > now:
                    alive.append(item.key.removeprefix(prefix))
                elif forget:
                    self._items.delete(item.key, expect=item.version)
            if (cursor := page.cursor) is None:
                return alive

    def lease(self, consumer: str, worker: str, shards: Sequence[str], seconds: float) -> list[ShardLease]:
        """Take or renew this worker's share of the shards."""
        now = self._now()
        self._items.put(self._worker_key(consumer, worker), msgspec.json.encode(now + seconds), expect=ANY)
        states = {shard: self.state(consumer, shard) for shard in shards}
        held = {shard: state.worker for shard, state in states.items() if state.until > now}
        chosen = share(shards, held, worker=worker, workers=self.workers(consumer, forget=True))

        def give_back(state: ShardState) -> ShardState | None:
            return msgspec.structs.replace(state, until=0.0) if state.worker == worker else None

        for shard in [shard for shard, holder in held.items() if holder == worker and shard not in chosen]:
            self._change(consumer, shard, give_back)
        granted = [self._take(consumer, shard, worker, seconds) for shard in chosen]
        return [lease for lease in granted if lease is not None]

    def _take(self, consumer: str, shard: str, worker: str, seconds: float) -> ShardLease | None:
        def take(state: ShardState) -> ShardState | None:
            # The calls before this one may have taken as long as a lease lasts.
            now = self._now()
            free = state.until <= now
            if not free and state.worker != worker:
                return None
            token = state.token + 1 if free else state.token
            return msgspec.structs.replace(state, worker=worker, token=token, until=now + seconds)

        taken = self._change(consumer, shard, take)
        return None if taken is None else ShardLease(shard=shard, worker=worker, token=taken.token)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _worker_key(self, consumer: str, worker: str) -> str:
        return f"{self._prefix}/{consumer}/workers/{worker}"

    def _change(self, consumer: str, shard: str, change: Change) -> ShardState | None:
        """Write what `change` returns for the state, again if another writer was faster; None changes nothing."""
        key = f"{self._prefix}/{consumer}/shards/{shard}"
        item = self._items.get(key)
        for _ in range(_TRIES):
            before = _read(item)
            after = change(before)
            if after is None or after == before:
                return after
            expect = ABSENT if item is None else item.version
            result = self._items.put(key, msgspec.json.encode(after), expect=expect)
            if result.ok:
                return after
            item = result.item
        raise Unavailable(f"{key}: other writers keep changing it", remedy="Try again.")


def _read(item: Item | None) -> ShardState:
    return ShardState() if item is None else msgspec.json.decode(item.value, type=ShardState)
