"""Rows of the embedded queue beside huey, litequeue, persist-queue and the bare loop, at the same durability."""

from __future__ import annotations

from benchmarks import bare, ours, peers
from benchmarks.frame import Load, Loads, Row, Side

_SMALL = Load(messages=40)
_ONE_AT_A_TIME = "send, receive and ack one at a time, durable, 1 producer and 1 consumer thread"
_BATCHES = "send, receive and ack in batches of 10, durable, 1 producer and 1 consumer thread"
_NO_BATCH = "the peer has no batches and moves one at a time"


def _row(name: str, what: str, target: float | None, our_side: Side, peer: Side, messages: int, note: str = "") -> Row:
    loads = Loads(full=Load(messages=messages), quick=Load(messages=messages // 4), smallest=_SMALL)
    return Row(name=name, what=what, unit="per_second", target=target, ours=our_side, peer=peer, loads=loads, note=note)


def _ours(*, producers: int, send_batch: int, take_batch: int) -> Side:
    opened = ours.moving(producers=producers, consumers=1, send_batch=send_batch, take_batch=take_batch)
    return Side(label="postroad", package="postroad", open=opened)


def _peer(name: str, *, producers: int) -> Side:
    return Side(label=name, package=name, open=peers.moving(name, producers=producers))


def _one_at_a_time() -> list[Row]:
    us = _ours(producers=1, send_batch=1, take_batch=1)
    targets = {"huey": 1.2, "litequeue": 2.0, "persist-queue": 2.0}
    rows = [
        _row(f"one-{name}", _ONE_AT_A_TIME, targets[name], us, _peer(name, producers=1), 2_000) for name in peers.PEERS
    ]
    bare_loop = Side(label="bare loop, one synced commit per send", open=bare.looping(batch=1))
    return [*rows, _row("one-bare", _ONE_AT_A_TIME, 0.5, us, bare_loop, 4_000)]


def _batches() -> list[Row]:
    us = _ours(producers=1, send_batch=10, take_batch=10)
    rows = [
        _row(f"batch-{name}", _BATCHES, 5.0, us, _peer(name, producers=1), 3_000, _NO_BATCH) for name in peers.PEERS
    ]
    same_sql = Side(label="bare loop of the same SQL", open=bare.repeating(batch=10))
    least_sql = Side(label="bare loop of the least SQL a queue can do with", open=bare.looping(batch=10))
    return [
        *rows,
        _row("batch-bare", _BATCHES, 0.7, us, same_sql, 20_000),
        _row("batch-least", _BATCHES, None, us, least_sql, 20_000),
    ]


def _threads(count: int, target: float) -> list[Row]:
    what = f"{count} producer threads that send one at a time, 1 consumer thread, durable (group commit)"
    us = _ours(producers=count, send_batch=1, take_batch=10)
    return [
        _row(f"threads-{count}-{name}", what, target, us, _peer(name, producers=count), 3_200, _NO_BATCH)
        for name in peers.PEERS
    ]


def _trail() -> list[Row]:
    what = "send, receive and ack in batches of 10 with the trail of settled messages against without it"
    kept, dropped = (
        ours.moving(producers=1, consumers=1, send_batch=10, take_batch=10, trail_keep=keep)
        for keep in (ours.TRAIL_KEEP, 0)
    )
    with_trail = Side(label="postroad with its trail", package="postroad", open=kept)
    without = Side(label="postroad without its trail", package="postroad", open=dropped)
    return [_row("trail", what, 0.9, with_trail, without, 20_000)]


ROWS = [*_one_at_a_time(), *_batches(), *_threads(8, 4.0), *_threads(32, 5.0), *_trail()]
