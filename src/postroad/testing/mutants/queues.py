"""Bugs of queues, topics and agents: leases, groups, dead letters, receive counts and copies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from postroad.testing.mutants.mutant import mutant, rewrite, slow_handlers, wrap

_LATE_SECONDS = 1.0
_STEP_AFTER_SECONDS = 1.5
_STEP_US = 3_600_000_000


@mutant("ack-before-handling", "a consumer acks a message before it handles it", "I1")
def ack_before_handling() -> None:
    from postroad.queues.sqlite.queue import SQLiteQueue

    def receive(original: Callable[..., Any], queue: SQLiteQueue, **options: Any) -> Any:
        deliveries = original(queue, **options)
        queue.ack(deliveries)
        return deliveries

    wrap(SQLiteQueue, "receive", receive)


@mutant("commit-after-reply", "send answers before the message is committed", "I1")
def commit_after_reply() -> None:
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


@mutant("synchronous-off", "commits do not wait for the disk", "I1", by_power_loss=True)
def synchronous_off() -> None:
    """The disk of the power-loss simulation has this bug."""


@mutant("lease-by-wall-clock", "leases end by a clock that can be set", "I13")
def lease_by_wall_clock() -> None:
    import postroad.engine.engine

    engine: Any = postroad.engine.engine
    began = time.monotonic()

    def wall_us() -> int:
        stepped = time.monotonic() - began > _STEP_AFTER_SECONDS
        return time.time_ns() // 1_000 + (_STEP_US if stepped else 0)

    original = engine.microseconds
    engine.microseconds = lambda clock: (wall_us, original(clock)[1])


@mutant("no-group-lock", "a group is not locked while one of its messages is out", "I11")
def no_group_lock() -> None:
    from postroad.queues.sqlite import claims

    rewrite(claims, "_LOCK_GROUP", "WHERE id = ?", "WHERE id = ? AND 0")
    # What is out comes last, not never: a group whose first lease has ended would be searched in vain for ever.
    rewrite(claims, "_OF_GROUP", "ORDER BY m.id", "ORDER BY coalesce(lease.visible_us, 0), m.id")


@mutant("group-lock-leaks", "the lock of a group outlives a killed consumer", "I17")
def group_lock_leaks() -> None:
    from postroad.queues.sqlite import claims

    rewrite(claims, "_LOCK_GROUP", "visible_us = ?", "visible_us = ? + 3600000000")


@mutant("dedup-forgotten-on-ack", "an ack makes the queue forget a dedup id", "I20")
def dedup_forgotten_on_ack() -> None:
    from postroad.queues.sqlite.verbs import Verbs

    def ack(original: Callable[..., Any], verbs: Verbs, tx: Any, state: Any, deliveries: Any) -> Any:
        for delivery in deliveries:
            row = int(delivery.receipt.partition("-")[0])
            tx.connection.execute("DELETE FROM dedup WHERE message = ?", (row,))
        return original(verbs, tx, state, deliveries)

    wrap(Verbs, "ack", ack)


@mutant("dead-letter-in-two-steps", "a dead letter is removed in one commit, and stored in a later one", "I1")
def dead_letter_in_two_steps() -> None:
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


@mutant("dead-letter-one-early", "a message is dead one receive too early", "I15", messages=1_000, kills=1)
def dead_letter_one_early() -> None:
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


@mutant("peek-counts", "peek counts as a receive", "I14", messages=1_000, kills=1)
def peek_counts() -> None:
    from postroad.queues.sqlite.queue import SQLiteQueue

    def peek(original: Callable[..., Any], queue: SQLiteQueue, **options: Any) -> Any:
        statement = "UPDATE lease SET receives = receives + 1 WHERE queue = ? AND held = 0"
        queue._engine.write(lambda tx: tx.connection.execute(statement, (queue.id,)))
        return original(queue, **options)

    wrap(SQLiteQueue, "peek", peek)


@mutant("stale-ack-accepted", "an ack with an old receipt is accepted", "I12", messages=150, kills=2)
def stale_ack_accepted() -> None:
    from postroad.queues.sqlite import verbs

    rewrite(verbs, "_ACK", "receives + undone = ?", "? > 0")
    # A late ack comes while the next consumer still handles the message.
    slow_handlers(2.2, chance=0.2, otherwise=0.2)


@mutant("redrive-loses-order", "a redrive sends the messages of a group in any order", "I9")
def redrive_loses_order() -> None:
    from postroad.queues.sqlite import moves

    for statement in ("_PEEK", "_PEEK_THESE"):
        rewrite(moves, statement, "ORDER BY m.id", "ORDER BY m.id DESC")


@mutant("unsubscribe-drops-others", "unsubscribing one queue empties another", "I7", scenario="topic", kills=2)
def unsubscribe_drops_others() -> None:
    from postroad.topics.sqlite import SQLiteTopic

    def unsubscribe(original: Callable[..., Any], topic: SQLiteTopic, queue: Any) -> Any:
        topic._queues.queue("audit").purge()
        return original(topic, queue)

    wrap(SQLiteTopic, "unsubscribe", unsubscribe)


@mutant("own-events-forgotten", "a bus handles its own events again when they come back", "I8", scenario="bus", kills=2)
def own_events_forgotten() -> None:
    from postroad.bus.publisher import Publisher

    wrap(Publisher, "_remember", lambda *_: None)


@mutant("fanout-key-by-millisecond", "events of one millisecond overwrite each other", "I1", scenario="agents", kills=2)
def fanout_key_by_millisecond() -> None:
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


@mutant("read-skips-a-record", "a read leaves out a record", "I1", scenario="stream", kills=2)
def read_skips_a_record() -> None:
    from postroad.streams.sqlite import SQLiteStream

    def read(original: Callable[..., Any], stream: SQLiteStream, *args: Any, **given: Any) -> Any:
        records = original(stream, *args, **given)
        return records[1:] if len(records) > 1 else records

    wrap(SQLiteStream, "read", read)
