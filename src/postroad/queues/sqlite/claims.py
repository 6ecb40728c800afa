"""Claims: what a receive leases, now or when a send of this process serves waiting receivers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, Final, Literal

from postroad.engine import Engine, Listener, Transaction, every, moment, one, run_many, text_of
from postroad.errors import QueueNotFound
from postroad.queues.port import Delivery
from postroad.queues.sqlite.state import (
    COLUMNS,
    DAMAGED,
    JOINED,
    MessageIds,
    QueueState,
    Row,
    States,
    channel,
    checksum,
    is_damaged,
    read_attributes,
    regroup,
)
from postroad.queues.sqlite.verbs import Verbs, entry
from postroad.telemetry import get_logger

_RETURNED: Final = f"""
SELECT {COLUMNS}, lease.visible_us, lease.held FROM lease JOIN message AS m ON m.id = lease.id
WHERE lease.queue = ? AND lease.visible_us <= ? ORDER BY lease.visible_us LIMIT ?
"""  # noqa: S608 - a constant
_FRESH: Final = f"SELECT {COLUMNS}, lease.id {JOINED} WHERE m.id >= ? AND m.id < ? ORDER BY m.id LIMIT ?"
_FREE_GROUPS: Final = "SELECT id FROM grp WHERE queue = ? AND visible_us <= ? ORDER BY visible_us LIMIT ?"
_OF_GROUP: Final = f"""
SELECT {COLUMNS}, max(coalesce(m.due_us, 0), coalesce(lease.visible_us, 0)), coalesce(lease.held, 0) {JOINED}
WHERE m.grp = ? ORDER BY m.id LIMIT ?
"""
_LEASE: Final = """
INSERT INTO lease (id, queue, grp, visible_us, held, receives, first_us, leased_us, sent_us, origin)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET visible_us = excluded.visible_us, held = 1, receives = excluded.receives,
    first_us = excluded.first_us, leased_us = excluded.leased_us, due_wall_us = NULL
"""
_LOCK_GROUP: Final = "UPDATE grp SET visible_us = ? WHERE id = ?"
_NEXT_RETURN: Final = "SELECT min(visible_us) FROM lease WHERE queue = ?"
_NEVER: Final = 1 << 62
_UNDECIDED: Final = 0.05


Columns = tuple[Any, ...]
"""A message as it is read: the fields of a `Row`, which is only made of those that are not given out."""
Leased = tuple[Columns, int, int]
"""A message as it is stored, its receive count, and the time of its first receive."""


class Claimer:
    """Leases messages to receivers, to those that ask and to those that wait in this process."""

    def __init__(self, engine: Engine, ids: MessageIds, states: States, verbs: Verbs) -> None:
        self.parking = Parking()
        self._engine = engine
        self._ids = ids
        self._states = states
        self._verbs = verbs

    def claim(self, tx: Transaction, state: QueueState, limit: int, visibility_us: int | None) -> list[Leased]:
        """Lease up to `limit` messages. The receiver calls `deliveries` when the next transaction may begin."""
        now_us, monotonic_us = self._engine.now_us(), self._engine.monotonic_us()
        if state.spec.auto_delete_after is not None:
            state.seen_us = monotonic_us
        if visibility_us is None:
            visibility_us = int(state.spec.visibility * 1_000_000)
        until_us, queue_id = monotonic_us + visibility_us, state.id
        if state.spec.fifo:
            state.write(tx)
            found = self._find_ordered(tx, state, limit, now_us, monotonic_us, until_us)
        else:
            found = self._find_standard(tx, state, limit, now_us, monotonic_us)
        leases: list[tuple[Any, ...]] = []
        leased: list[Leased] = []
        for columns in found:
            row_id, sent_us, grp, origin, _, _, _, _, before, first_us, _, _ = columns
            receives, first_us = before + 1, first_us or now_us
            leases.append((row_id, queue_id, grp, until_us, 1, receives, first_us, monotonic_us, sent_us, origin))
            leased.append((columns, receives, first_us))
        if leases:
            run_many(tx.cursor, _LEASE, leases)
            state.received += len(leases)
            state.returns_us = min(state.returns_us, until_us)
        return leased

    def deliveries(self, leased: Iterable[Leased]) -> list[Delivery]:
        """Return the leased messages as the receiver gets them."""
        text = self._ids.text
        return [
            Delivery(
                text(row_id if origin is None else origin),
                body,
                {} if attributes is None else read_attributes(attributes),
                group_name if group_name is None else text_of(group_name),
                # The number of the receive, with those that were taken back, is the fencing token.
                f"{row_id}-{receives + undone}",
                receives,
                moment(sent_us),
                moment(first_us),
                row_id,
            )
            for (row_id, sent_us, _, origin, group_name, body, attributes, *_, undone), receives, first_us in leased
        ]

    def deliver(self, tx: Transaction, state: QueueState) -> None:
        """Before the commit, lease what was sent to receivers waiting in this process, and wake those in others."""
        if state.unserved:
            return
        if not self.parking.has_waiting(state.id):
            # One that begins to wait before the commit is woken by it, like those in other processes.
            tx.touch(channel(state.id))
        else:
            state.unserved = True
            tx.before_commit(partial(self._serve, tx, state.id))

    def _serve(self, tx: Transaction, queue_id: int) -> None:
        try:
            state = self._states.for_sending(tx, queue_id)
        except QueueNotFound:
            # Deleted in the same transaction.
            return
        state.unserved = False
        self.parking.serve(tx, queue_id, lambda waiter: self.claim(tx, state, waiter.limit, waiter.visibility_us))
        if state.spec.fifo or state.head < state.next:
            tx.touch(channel(queue_id))

    def _find_standard(
        self, tx: Transaction, state: QueueState, limit: int, now_us: int, monotonic_us: int
    ) -> list[Columns]:
        found: list[Columns] = []
        if monotonic_us >= state.returns_us:
            found = self._find_returned(tx, state, limit, now_us, monotonic_us)
        # What this transaction sent itself needs no reading: it is whole, new, and has no lease.
        if state.unwritten:
            found += [
                (row_id, sent_us, grp, origin, group_name, body, attributes, proof, 0, None, None, 0)
                for row_id, sent_us, grp, _, origin, group_name, body, attributes, proof in state.take_unread(
                    limit - len(found)
                )
            ]
        while len(found) < limit and (ahead := self._look_ahead(tx, state, limit - len(found))):
            found += self._alive(tx, state, [columns[:-1] for columns in ahead if columns[-1] is None], now_us)
        return found

    def _find_returned(
        self, tx: Transaction, state: QueueState, limit: int, now_us: int, monotonic_us: int
    ) -> list[Columns]:
        """Return messages whose lease or delay has ended."""
        given: dict[int, Columns] = {}
        while len(given) < limit:
            # What was found before is found again, since its lease is written at the end.
            rows = every(tx.cursor, _RETURNED, (state.id, monotonic_us, limit))
            new = self._noted(tx, state, [row for row in rows if row[0] not in given], now_us, monotonic_us)
            alive = self._alive(tx, state, new, now_us)
            given.update((columns[0], columns) for columns in alive)
            if len(alive) == len(new):
                break
        if not given:
            # None is due, so no search is needed until the next one is.
            state.returns_us = one(tx.connection, _NEXT_RETURN, (state.id,))[0] or _NEVER
        return [*given.values()]

    def _look_ahead(self, tx: Transaction, state: QueueState, limit: int) -> list[Any]:
        """Return the next rows that no receiver has seen. Delayed ones among them come back by their lease."""
        if state.head >= state.next:
            return []
        state.write(tx)
        found = every(tx.cursor, _FRESH, (state.head, state.next, limit))
        state.head = found[-1][0] + 1 if found else state.next
        return found

    def _find_ordered(
        self, tx: Transaction, state: QueueState, limit: int, now_us: int, monotonic_us: int, until_us: int
    ) -> list[Columns]:
        found: list[Columns] = []
        while left := limit - len(found):
            groups = every(tx.cursor, _FREE_GROUPS, (state.id, monotonic_us, left))
            if not groups:
                break
            for (group,) in groups:
                rows = every(tx.cursor, _OF_GROUP, (group, limit - len(found)))
                due = takewhile(lambda columns: columns[-2] <= monotonic_us, rows)
                given = self._alive(tx, state, self._noted(tx, state, due, now_us, monotonic_us), now_us)
                found += given
                if given:
                    tx.connection.execute(_LOCK_GROUP, (until_us, group))
                else:
                    regroup(tx, state.id, (group,), monotonic_us)
                if len(found) == limit:
                    break
            if until_us <= monotonic_us:
                break
        return found

    def _noted(
        self, tx: Transaction, state: QueueState, rows: Iterable[Any], now_us: int, monotonic_us: int
    ) -> list[Columns]:
        """Return messages without the ends of their leases, after it is noted which receivers did not settle theirs."""
        found = []
        for *columns, ended_us, held in rows:
            if held:
                lost_us = now_us - (monotonic_us - ended_us)
                self._states.add_trail(tx, state.id, "lease_expired", entry(Row(*columns)), lost_us)
            found.append(tuple(columns))
        return found

    def _alive(self, tx: Transaction, state: QueueState, rows: Iterable[Columns], now_us: int) -> list[Columns]:
        """Return the messages that may be given out; remove the others."""
        oldest_us, most = now_us - state.spec.retention * 1_000_000, state.spec.max_receives
        alive = []
        for columns in rows:
            _, sent_us, _, _, group_name, body, attributes, proof, receives, _, _, _ = columns
            is_sound = sent_us > oldest_us and receives < most and checksum(body, attributes, group_name) == proof
            if is_sound or self._survives(tx, state, Row(*columns), now_us):
                alive.append(columns)
        return alive

    def _survives(self, tx: Transaction, state: QueueState, row: Row, now_us: int) -> bool:
        """Return whether the message may be given out, on a closer look; remove it otherwise."""
        if row.sent_us + state.spec.retention * 1_000_000 <= now_us:
            self._verbs.expire(tx, state, row, now_us=now_us)
            return False
        if is_damaged(row):
            self._remove_damaged(tx, state, row, now_us)
            return False
        if row.receives >= state.spec.max_receives:
            dead_letters = self._verbs.dead_letters(tx, state)
            if dead_letters is not None:
                self._verbs.dead_letter(tx, state, dead_letters, row, now_us=now_us)
                return False
        return True

    def _remove_damaged(self, tx: Transaction, state: QueueState, row: Row, now_us: int) -> None:
        """Move a damaged message to the dead letters, or aside where there are none: its neighbours go on."""
        message_id = self._ids.text(row.first_id)
        error = f"StorageDamaged: message {message_id}: {DAMAGED}"
        dead_letters = self._verbs.dead_letters(tx, state)
        if dead_letters is None:
            self._verbs.set_aside(tx, state, row, error=error, now_us=now_us)
        else:
            damaged = row._replace(error=error)
            self._verbs.dead_letter(tx, state, dead_letters, damaged, now_us=now_us, reason=DAMAGED)
        about = {"queue": state.name, "message_id": message_id, "error": DAMAGED}
        tx.after_commit(lambda: get_logger("queues").error("message_damaged", **about))


@dataclass(slots=True, eq=False)
class Waiter:
    """A receiver that found nothing."""

    listener: Listener
    limit: int
    visibility_us: int | None
    leased: list[Leased] = field(default_factory=list)
    state: Literal["away", "parked", "taken"] = "away"


Claim = Callable[[Waiter], list[Leased]]


class Parking:
    """The waiting receivers of this process, by queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[int, deque[Waiter]] = {}

    def has_waiting(self, queue_id: int) -> bool:
        """Return whether a receiver waits now; one may come or go at any time."""
        return bool(self._waiters.get(queue_id))

    def park(self, queue_id: int, waiter: Waiter) -> None:
        """Let the next send serve this receiver."""
        with self._lock:
            if waiter.state == "away":
                waiter.state = "parked"
                self._waiters.setdefault(queue_id, deque()).append(waiter)

    def withdraw(self, queue_id: int, waiter: Waiter) -> list[Leased]:
        """Stop waiting, and take what a send has leased meanwhile."""
        while True:
            with self._lock:
                if waiter.state == "parked":
                    self._remove(queue_id, waiter)
                if waiter.state == "away":
                    return waiter.leased
            # A send has taken it off the list and has not committed yet.
            waiter.listener.wait(_UNDECIDED)

    def serve(self, tx: Transaction, queue_id: int, claim: Claim) -> None:
        """Lease what this transaction sent to waiting receivers; they get it when it is committed."""
        if queue_id not in self._waiters:
            return
        taken: list[Waiter] = []
        # Registered before the first is taken off the list, so that an interruption leaves nobody behind.
        tx.after_rollback(partial(self._put_back, queue_id, taken))
        while (waiter := self._take(queue_id, taken)) is not None:
            leased = claim(waiter)
            if not leased:
                self._put_back(queue_id, [waiter])
                return
            tx.after_commit(partial(self._hand_over, waiter, leased))

    def _take(self, queue_id: int, taken: list[Waiter]) -> Waiter | None:
        """Take the next waiter off the list before anything is leased for it, so that no lease lacks a receiver."""
        with self._lock:
            waiters = self._waiters.get(queue_id)
            if not waiters:
                return None
            waiter = waiters[0]
            taken.append(waiter)
            waiter.state = "taken"
            waiters.popleft()
            return waiter

    def _put_back(self, queue_id: int, taken: Sequence[Waiter]) -> None:
        with self._lock:
            waiters = self._waiters.setdefault(queue_id, deque())
            for waiter in reversed(taken):
                if waiter.state == "taken":
                    if waiter not in waiters:
                        waiters.appendleft(waiter)
                    waiter.state = "parked"

    def _hand_over(self, waiter: Waiter, leased: list[Leased]) -> None:
        with self._lock:
            waiter.leased = leased
            waiter.state = "away"
        waiter.listener.wake()

    def _remove(self, queue_id: int, waiter: Waiter) -> None:
        waiters = self._waiters.get(queue_id, deque())
        # It is not on the list yet if it was interrupted while it parked.
        if waiter in waiters:
            waiters.remove(waiter)
        waiter.state = "away"
        if not waiters:
            self._waiters.pop(queue_id, None)
