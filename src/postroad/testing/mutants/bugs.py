"""The bugs: of queues, topics, streams and agents first, then of the outbox, the inbox, tasks and jobs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from postroad.testing.mutants.mutant import mutant, rewrite, slow_handlers, wrap

if TYPE_CHECKING:
    import postroad.agents.sqlite.store as agent_store
    import postroad.jobs.coordinator as job_coordinator
    import postroad.jobs.graph as job_graph
    import postroad.outbox.dispatching.sqlite as dispatching
    import postroad.queues.sqlite.claims as claims
    import postroad.queues.sqlite.queue as queues
    import postroad.queues.sqlite.verbs as sqlite_verbs
    import postroad.streams.sqlite as streams
    import postroad.tasks.attempts as attempts
    import postroad.topics.sqlite as topics
    from postroad.inbox import Inbox

Original = Callable[..., Any]
_LATE_SECONDS = 1.0
_STEP_AFTER_SECONDS = 1.5
_STEP_US = 3_600_000_000
_WINDOW_SECONDS = 0.05
_SLOW, _SLOW_SECONDS = 0.03, 4.0
_LATE_SETTLING, _LATE_SETTLING_SECONDS = 0.05, 4.0
_QUEUE = "postroad.queues.sqlite.queue:SQLiteQueue"
_VERBS = "postroad.queues.sqlite.verbs:Verbs"
_CLAIMS = "postroad.queues.sqlite.claims"
_DISPATCH = "postroad.outbox.dispatching.sqlite"
_CLAIM = f"{_DISPATCH}:SQLiteDispatchStore.claim"
_READ = "postroad.streams.sqlite:SQLiteStream.read"
_UNSUBSCRIBE = "postroad.topics.sqlite:SQLiteTopic.unsubscribe"
_LOG = "postroad.bus.telemetry:BusTelemetry.log"
_INBOX = "postroad.inbox.inbox:Inbox"
_ATTEMPT = "postroad.tasks.attempts:Attempt"


@mutant("a consumer acks a message before it handles it", "I1", wraps=f"{_QUEUE}.receive")
def ack_before_handling(original: Original, queue: queues.SQLiteQueue, **options: Any) -> Any:
    deliveries = original(queue, **options)
    queue.ack(deliveries)
    return deliveries


@mutant("send answers before the message is committed", "I1")
def commit_after_reply() -> None:
    from postroad.queues import SendResult

    later = ThreadPoolExecutor(1)

    def send(original: Original, queue: queues.SQLiteQueue, messages: Any) -> Any:
        def commit() -> None:
            time.sleep(_LATE_SECONDS / 20)
            original(queue, messages)

        later.submit(commit)
        return [SendResult(True, "later", None) for _ in messages]

    wrap(f"{_QUEUE}.send", send)


@mutant("commits do not wait for the disk", "I1", by_power_loss=True)
def synchronous_off() -> None:
    """The disk of the power-loss simulation has this bug."""


@mutant("leases end by a clock that can be set", "I13")
def lease_by_wall_clock() -> None:
    import postroad.engine.engine

    engine: Any = postroad.engine.engine
    began = time.monotonic()

    def wall_us() -> int:
        stepped = time.monotonic() - began > _STEP_AFTER_SECONDS
        return time.time_ns() // 1_000 + (_STEP_US if stepped else 0)

    original = engine.microseconds
    engine.microseconds = lambda clock: (wall_us, original(clock)[1])


@mutant("a group is not locked while one of its messages is out", "I11")
def no_group_lock() -> None:
    rewrite(_CLAIMS, "_LOCK_GROUP", "WHERE id = ?", "WHERE id = ? AND 0")
    # What is out comes last, not never: a group whose first lease has ended would be searched in vain for ever.
    rewrite(_CLAIMS, "_OF_GROUP", "ORDER BY m.id", "ORDER BY coalesce(lease.visible_us, 0), m.id")


@mutant("the lock of a group outlives a killed consumer", "I17")
def group_lock_leaks() -> None:
    rewrite(_CLAIMS, "_LOCK_GROUP", "visible_us = ?", "visible_us = ? + 3600000000")


@mutant("an ack makes the queue forget a dedup id", "I20", wraps=f"{_VERBS}.ack")
def dedup_forgotten_on_ack(original: Original, verbs: sqlite_verbs.Verbs, tx: Any, state: Any, deliveries: Any) -> Any:
    for delivery in deliveries:
        row = int(delivery.receipt.partition("-")[0])
        tx.connection.execute("DELETE FROM dedup WHERE message = ?", (row,))
    return original(verbs, tx, state, deliveries)


@mutant("a dead letter is removed in one commit, and stored in a later one", "I1", wraps=f"{_VERBS}.dead_letter")
def dead_letter_in_two_steps(
    original: Original, verbs: sqlite_verbs.Verbs, tx: Any, state: Any, target: int, row: Any, *, now_us: int, **_: Any
) -> None:
    from postroad.engine import text_of

    verbs._remove(tx, state, row, "dead", now_us)
    content = (now_us, text_of(row.group_name), row.body, row.attributes)

    def second_step(tx: Any) -> None:
        verbs.append(tx, verbs._states.for_sending(tx, target), content, origin=row.first_id)

    step = threading.Timer(5 * _LATE_SECONDS, partial(verbs._engine.write, second_step))
    step.daemon = True
    tx.after_commit(step.start)


@mutant("a message is dead one receive too early", "I15", wraps=f"{_CLAIMS}:Claimer._alive", messages=1_000, kills=1)
def dead_letter_one_early(
    original: Original, claimer: claims.Claimer, tx: Any, state: Any, rows: Iterable[Any], now_us: int
) -> Any:
    from postroad.queues.sqlite.state import Row

    target, kept = claimer._verbs.dead_letters(tx, state), []
    for columns in rows:
        row = Row(*columns)
        if target is not None and row.receives >= state.spec.max_receives - 1:
            claimer._verbs.dead_letter(tx, state, target, row, now_us=now_us)
        else:
            kept.append(columns)
    return original(claimer, tx, state, kept, now_us)


@mutant("peek counts as a receive", "I14", wraps=f"{_QUEUE}.peek", messages=1_000, kills=1)
def peek_counts(original: Original, queue: queues.SQLiteQueue, **options: Any) -> Any:
    statement = "UPDATE lease SET receives = receives + 1 WHERE queue = ? AND held = 0"
    queue._engine.write(lambda tx: tx.connection.execute(statement, (queue.id,)))
    return original(queue, **options)


@mutant("an ack with an old receipt is accepted", "I12", messages=150, kills=2)
def stale_ack_accepted() -> None:
    rewrite("postroad.queues.sqlite.verbs", "_ACK", "receives + undone = ?", "? > 0")
    # A late ack comes while the next consumer still handles the message.
    slow_handlers(2.2, chance=0.2, otherwise=0.2)


@mutant("a redrive sends the messages of a group in any order", "I9")
def redrive_loses_order() -> None:
    for statement in ("_PEEK", "_PEEK_THESE"):
        rewrite("postroad.queues.sqlite.moves", statement, "ORDER BY m.id", "ORDER BY m.id DESC")


@mutant("unsubscribing one queue empties another", "I7", wraps=_UNSUBSCRIBE, scenario="topic", kills=2)
def unsubscribe_drops_others(original: Original, topic: topics.SQLiteTopic, queue: Any) -> Any:
    topic._queues.queue("audit").purge()
    return original(topic, queue)


@mutant("a bus handles its own events again when they come back", "I8", scenario="bus", kills=2)
def own_events_forgotten() -> None:
    wrap("postroad.bus.publisher:Publisher._remember", lambda *_: None)


@mutant("metrics count each event of a bus twice", "I28", wraps=_LOG, scenario="bus", kills=2)
def metrics_count_twice(original: Original, *args: Any, **given: Any) -> None:
    for _ in range(2):
        original(*args, **given)


@mutant("events of one millisecond overwrite each other", "I1", scenario="agents", kills=2)
def fanout_key_by_millisecond() -> None:
    seen: set[int] = set()

    def fan_out(original: Original, store: agent_store.SQLiteAgentStore, tx: Any, events: Any) -> Any:
        fresh = []
        for event in events:
            if event.occurred_ms not in seen:
                fresh.append(event)
            seen.add(event.occurred_ms)
        return original(store, tx, fresh)

    wrap("postroad.agents.sqlite.store:SQLiteAgentStore._fan_out", fan_out)


@mutant("a read leaves out a record", "I1", wraps=_READ, scenario="stream", kills=2)
def read_skips_a_record(original: Original, stream: streams.SQLiteStream, *args: Any, **given: Any) -> Any:
    records = original(stream, *args, **given)
    return records[1:] if len(records) > 1 else records


@mutant("a row that failed does not hold back the later rows of its key", "I9", scenario="outbox")
def retry_per_row() -> None:
    for statement in ("_HELD_BEFORE", "_ANY_BEFORE", "_ANY_LEASED"):
        rewrite(_DISPATCH, statement, "WHERE {open}", "WHERE 0 AND {open}")


@mutant("a dispatcher never looks behind the newest time that it has seen", "I17", scenario="outbox")
def cursor_by_created_at() -> None:
    reached = ""

    def claim(original: Original, store: dispatching.SQLiteDispatchStore, *args: Any, **given: Any) -> Any:
        nonlocal reached
        kept, last = [], reached
        for row in original(store, *args, **given):
            with store._file.reading() as session:
                created = session.rows(store._sql("SELECT createdat FROM {outbox} WHERE id = ?"), (row.id,))[0][0]
            if created > reached:
                kept.append(row)
                last = max(last, created)
        reached = last
        return kept

    wrap(_CLAIM, claim)


@mutant("a row counts as sent before it is published", "I1", wraps=_CLAIM, scenario="outbox")
def mark_before_publish(original: Original, store: dispatching.SQLiteDispatchStore, *args: Any, **given: Any) -> Any:
    rows = original(store, *args, **given)
    with store._file.transaction() as session:
        for row in rows:
            session.change(store._sql("UPDATE {outbox} SET state = 'SENT' WHERE id = ?"), (row.id,))
    time.sleep(_WINDOW_SECONDS if rows else 0)
    return rows


@mutant("two dispatchers publish rows of one key at the same time", "I9", scenario="outbox")
def two_dispatchers_one_key() -> None:
    retry_per_row.apply()
    unleased = "coalesce(lease_until, '') <= {now}"
    for statement in ("_NEXT_LANE", "_NEXT_TENANT", "_ROWS"):
        rewrite(_DISPATCH, statement, "WHERE {open}", f"WHERE {unleased} AND {{open}}")


@mutant("the inbox row is written after the effect is committed", "I5")
def inbox_after_effect() -> None:
    slow_handlers(_WINDOW_SECONDS, chance=1.0)

    def insert(first_time: Original, inbox: Inbox, consumer: str, event: Any) -> None:
        with inbox.transaction() as connection:
            first_time(inbox, connection, consumer, event)

    def first_time(original: Original, inbox: Inbox, connection: Any, consumer: str, event: Any, **_: Any) -> bool:
        if inbox.processed(consumer, [event]):
            return False
        threading.Timer(10 * _WINDOW_SECONDS, insert, (original, inbox, consumer, event)).start()
        return True

    wrap(f"{_INBOX}.first_time", first_time)


@mutant("the inbox looks first, and writes its row in another transaction", "I5", kills=2)
def inbox_select_then_insert() -> None:
    selected = threading.local()

    @contextmanager
    def transaction(original: Original, inbox: Inbox) -> Iterator[Any]:
        selected.ids = {str(event) for event in inbox.event_ids("verify.fifo", limit=1_000)}
        if random.random() < _SLOW:
            time.sleep(_SLOW_SECONDS)
        with original(inbox) as connection:
            yield connection

    def first_time(original: Original, inbox: Inbox, connection: Any, consumer: str, event: Any, **given: Any) -> bool:
        original(inbox, connection, consumer, event, **given)
        return str(event) not in selected.ids

    wrap(f"{_INBOX}.transaction", transaction)
    wrap(f"{_INBOX}.first_time", first_time)


@mutant("two consumers share the rows of one inbox", "I5", wraps=f"{_INBOX}.first_time", scenario="bus", kills=2)
def inbox_without_consumer(original: Original, inbox: Inbox, connection: Any, _: str, event: Any, **given: Any) -> bool:
    return bool(original(inbox, connection, "everybody", event, **given))


@mutant(
    "a heartbeat is recorded after the end of a task",
    "I22",
    wraps=f"{_ATTEMPT}._end",
    scenario="tasks",
    messages=100,
    kills=6,
)
def heartbeat_overwrites_completed(original: Original, attempt: attempts.Attempt, *args: Any, **given: Any) -> None:
    original(attempt, *args, **given)
    if attempt._held is not None:
        until, worker = attempt._lease.effective_until, attempt._shared.worker_id
        late: dict[str, Any] = {"effectiveUntil": until, "heartbeatNumber": 1, "elapsedMs": 1, "workerId": worker}
        late |= {"processId": attempt._pid, "memoryUsage": {"rss": 0}, "lastActivity": None, "progress": None}
        attempt._shared.records.record([attempt._event("Task Heartbeat", **late)])


@mutant("a worker that lost its lease still commits its result", "I23", scenario="tasks", messages=200, kills=6)
def no_fencing() -> None:
    def settle(original: Original, attempt: attempts.Attempt, *args: Any, **given: Any) -> None:
        # The worker sleeps through its lease now and then, as if the machine had stopped it.
        if random.random() < _LATE_SETTLING:
            time.sleep(_LATE_SETTLING_SECONDS)
        original(attempt, *args, **given)

    wrap("postroad.tasks.leases:Lease.is_held_by", lambda original, lease, owner, token: True)
    wrap(f"{_ATTEMPT}.settle", settle)


@mutant(
    "a task with several dependencies starts before they have completed", "I25", scenario="jobs", messages=60, kills=4
)
def fan_in_double_start() -> None:
    def begin(
        original: Original, coordinator: job_coordinator.JobCoordinator, job_id: str, task_ids: Iterable[str]
    ) -> Any:
        _, progress = coordinator._open(job_id)
        tasks = {} if progress is None else progress.graph.tasks
        return original(coordinator, job_id, [*task_ids, *(each for each in tasks if len(tasks[each].depends_on) > 1)])

    def is_ready(original: Original, progress: job_graph.GraphProgress, task_id: str, is_completed: Any) -> bool:
        return len(progress.graph.tasks[task_id].depends_on) > 1 or bool(original(progress, task_id, is_completed))

    wrap("postroad.jobs.coordinator:JobCoordinator.begin", begin)
    wrap("postroad.jobs.graph:GraphProgress.is_ready", is_ready)
    wrap("postroad.jobs.coordinator:JobCoordinator._outputs", lambda original, *args: original(*args) or {})
