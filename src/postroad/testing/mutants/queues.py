"""Bugs of queues, topics and agents: leases, groups, dead letters, receive counts and copies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from postroad.testing.mutants.mutant import Mutant, rewrite, slow_handlers, wrap

_LATE_SECONDS = 1.0
_STEP_AFTER_SECONDS = 1.5
_STEP_US = 3_600_000_000


def _ack_before_handling() -> None:
    from postroad.queues.sqlite.queue import SQLiteQueue

    def receive(original: Callable[..., Any], queue: SQLiteQueue, **options: Any) -> Any:
        deliveries = original(queue, **options)
        queue.ack(deliveries)
        return deliveries

    wrap(SQLiteQueue, "receive", receive)


def _commit_after_reply() -> None:
    from postroad.queues import SendResult
    from postroad.queues.sqlite.queue import SQLiteQueue

    later = ThreadPoolExecutor(1)

    def send(original: Callable[..., Any], queue: SQLiteQueue, messages: Any) -> Any:
        def commit() -> None:
            time.sleep(_LATE_SECONDS / 20)
            original(queue, messages)

        later.submit(commit)
        return [SendResult(True, "later", None) for _ in messages]

    wrap(SQLiteQueue, "send", send)


def _lease_by_wall_clock() -> None:
    import postroad.engine.engine

    engine: Any = postroad.engine.engine
    began = time.monotonic()

    def wall_us() -> int:
        stepped = time.monotonic() - began > _STEP_AFTER_SECONDS
        return time.time_ns() // 1_000 + (_STEP_US if stepped else 0)

    original = engine.microseconds
    engine.microseconds = lambda clock: (wall_us, original(clock)[1])


def _no_group_lock() -> None:
    from postroad.queues.sqlite import claims

    rewrite(claims, "_LOCK_GROUP", "WHERE id = ?", "WHERE id = ? AND 0")
    rewrite(claims, "_OF_GROUP", "WHERE m.grp = ?", "WHERE m.grp = ? AND coalesce(lease.held, 0) = 0")


def _group_lock_leaks() -> None:
    from postroad.queues.sqlite import claims

    rewrite(claims, "_LOCK_GROUP", "visible_us = ?", "visible_us = ? + 3600000000")


def _dedup_forgotten_on_ack() -> None:
    from postroad.queues.sqlite.verbs import Verbs

    def ack(original: Callable[..., Any], verbs: Verbs, tx: Any, state: Any, deliveries: Any) -> Any:
        for delivery in deliveries:
            row = int(delivery.receipt.partition("-")[0])
            tx.connection.execute("DELETE FROM dedup WHERE message = ?", (row,))
        return original(verbs, tx, state, deliveries)

    wrap(Verbs, "ack", ack)


def _dead_letter_in_two_steps() -> None:
    from postroad.engine import text_of
    from postroad.queues.sqlite.verbs import Verbs

    def dead_letter(
        original: Callable[..., Any], verbs: Verbs, tx: Any, state: Any, target: int, row: Any, *, now_us: int, **_: Any
    ) -> None:
        verbs._remove(tx, state, row, "dead", now_us)
        content = (now_us, text_of(row.group_name), row.body, row.attributes)

        def second_step(tx: Any) -> None:
            verbs.append(tx, verbs._states.for_sending(tx, target), content, origin=row.first_id)

        step = threading.Timer(5 * _LATE_SECONDS, partial(verbs._engine.write, second_step))
        step.daemon = True
        tx.after_commit(step.start)

    wrap(Verbs, "dead_letter", dead_letter)


def _dead_letter_one_early() -> None:
    from postroad.queues.sqlite.claims import Claimer
    from postroad.queues.sqlite.state import Row

    def alive(
        original: Callable[..., Any], claimer: Claimer, tx: Any, state: Any, rows: Iterable[Any], now_us: int
    ) -> Any:
        target, kept = claimer._verbs.dead_letters(tx, state), []
        for columns in rows:
            row = Row(*columns)
            if target is not None and row.receives >= state.spec.max_receives - 1:
                claimer._verbs.dead_letter(tx, state, target, row, now_us=now_us)
            else:
                kept.append(columns)
        return original(claimer, tx, state, kept, now_us)

    wrap(Claimer, "_alive", alive)


def _peek_counts() -> None:
    from postroad.queues.sqlite.queue import SQLiteQueue

    def peek(original: Callable[..., Any], queue: SQLiteQueue, **options: Any) -> Any:
        statement = "UPDATE lease SET receives = receives + 1 WHERE queue = ? AND held = 0"
        queue._engine.write(lambda tx: tx.connection.execute(statement, (queue.id,)))
        return original(queue, **options)

    wrap(SQLiteQueue, "peek", peek)


def _stale_ack_accepted() -> None:
    from postroad.queues.sqlite import verbs

    rewrite(verbs, "_ACK", "receives + undone = ?", "? > 0")
    # A late ack comes while the next consumer still handles the message.
    slow_handlers(2.2, chance=0.2, otherwise=0.2)


def _redrive_loses_order() -> None:
    from postroad.queues.sqlite import moves

    for statement in ("_PEEK", "_PEEK_THESE"):
        rewrite(moves, statement, "ORDER BY m.id", "ORDER BY m.id DESC")


def _unsubscribe_drops_others() -> None:
    from postroad.topics.sqlite import SQLiteTopic

    def unsubscribe(original: Callable[..., Any], topic: SQLiteTopic, queue: Any) -> Any:
        topic._queues.queue("audit").purge()
        return original(topic, queue)

    wrap(SQLiteTopic, "unsubscribe", unsubscribe)


def _fanout_key_by_millisecond() -> None:
    from postroad.agents.sqlite.store import SQLiteAgentStore

    seen: set[int] = set()

    def fan_out(original: Callable[..., Any], store: SQLiteAgentStore, tx: Any, events: Any) -> Any:
        fresh = []
        for event in events:
            if event.occurred_ms not in seen:
                fresh.append(event)
            seen.add(event.occurred_ms)
        return original(store, tx, fresh)

    wrap(SQLiteAgentStore, "_fan_out", fan_out)


def _read_skips_a_record() -> None:
    from postroad.streams.sqlite import SQLiteStream

    def read(original: Callable[..., Any], stream: SQLiteStream, *args: Any, **given: Any) -> Any:
        records = original(stream, *args, **given)
        return records[1:] if len(records) > 1 else records

    wrap(SQLiteStream, "read", read)


def _nothing() -> None:
    """The disk of the power-loss simulation has this bug."""


def _queue(
    name: str,
    bug: str,
    invariant: str,
    apply: Callable[[], None],
    scenario: str = "queue",
    *,
    messages: int = 400,
    kills: int = 20,
) -> Mutant:
    return Mutant(
        name=name, bug=bug, invariant=invariant, scenario=scenario, apply=apply, messages=messages, kills=kills
    )


MUTANTS = (
    _queue("ack-before-handling", "a consumer acks a message before it handles it", "I1", _ack_before_handling),
    _queue("commit-after-reply", "send answers before the message is committed", "I1", _commit_after_reply),
    Mutant(
        name="synchronous-off",
        bug="commits do not wait for the disk",
        invariant="I1",
        scenario="queue",
        apply=_nothing,
        by_power_loss=True,
    ),
    _queue("lease-by-wall-clock", "leases end by a clock that can be set", "I13", _lease_by_wall_clock),
    _queue("no-group-lock", "a group is not locked while one of its messages is out", "I11", _no_group_lock),
    _queue("group-lock-leaks", "the lock of a group outlives a killed consumer", "I17", _group_lock_leaks),
    _queue("dedup-forgotten-on-ack", "an ack makes the queue forget a dedup id", "I20", _dedup_forgotten_on_ack),
    _queue(
        "dead-letter-in-two-steps",
        "a dead letter is removed in one commit, and stored in a later one",
        "I1",
        _dead_letter_in_two_steps,
    ),
    Mutant(
        name="dead-letter-one-early",
        bug="a message is dead one receive too early",
        invariant="I15",
        scenario="queue",
        apply=_dead_letter_one_early,
        messages=1_000,
        kills=1,
    ),
    _queue("peek-counts", "peek counts as a receive", "I14", _peek_counts, messages=1_000, kills=1),
    _queue(
        "stale-ack-accepted",
        "an ack with an old receipt is accepted",
        "I12",
        _stale_ack_accepted,
        kills=2,
        messages=150,
    ),
    _queue("redrive-loses-order", "a redrive sends the messages of a group in any order", "I9", _redrive_loses_order),
    _queue(
        "unsubscribe-drops-others", "unsubscribing one queue empties another", "I7", _unsubscribe_drops_others, "topic"
    ),
    _queue(
        "fanout-key-by-millisecond",
        "events of one millisecond overwrite each other",
        "I1",
        _fanout_key_by_millisecond,
        "agents",
    ),
    _queue("read-skips-a-record", "a read leaves out a record", "I1", _read_skips_a_record, "stream"),
)
