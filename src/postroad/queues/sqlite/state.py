"""A queue within one transaction: read once, changed in memory, written once before the commit."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

import msgspec

from postroad.engine import Transaction, run_many
from postroad.errors import QueueNotFound, StorageDamaged
from postroad.queues.spec import QueueSpec

_LOAD: Final = """
SELECT queue.id, CAST(queue.name AS BLOB), CAST(queue.spec AS BLOB), next, head, last_us, seen_us
FROM tally JOIN queue ON queue.id = tally.queue WHERE tally.queue IN (VALUES (?))
"""
_STORE: Final = """
UPDATE tally SET next = ?2, head = ?3, last_us = ?4, seen_us = ?5, size = size + ?6, sent = sent + ?7,
    received = received + ?8, acked = acked + ?9, retried = retried + ?10, dead = dead + ?11,
    redriven = redriven + ?12, expired = expired + ?13
WHERE queue = ?1
"""
_STORE_MANY: Final = """
UPDATE tally SET next = v.column2, head = v.column3, last_us = v.column4, seen_us = v.column5,
    size = size + v.column6, sent = sent + v.column7, received = received + v.column8, acked = acked + v.column9,
    retried = retried + v.column10, dead = dead + v.column11, redriven = redriven + v.column12,
    expired = expired + v.column13
  FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) AS v
 WHERE queue = v.column1
"""
_INSERT: Final = """
INSERT INTO message (id, sent_us, grp, due_us, origin, group_name, body, attributes, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ORIGIN: Final = 4
_ADD_TRAIL: Final = "INSERT INTO trail (queue, at_us, kind, entries, detail) VALUES (?, ?, ?, ?, ?)"
_TURN_TRAIL: Final = "DELETE FROM trail WHERE n <= ?"
_TURN_EVERY: Final = 64

ENTRY: Final = struct.Struct(">qHqq")
"""How the trail remembers a message: the id it was first sent under, its receives, when it was sent, first received."""


_PROOF: Final = b',"crc32":'
_FIELDS: Final = frozenset(field.name for field in fields(QueueSpec))


@lru_cache(maxsize=4_096)
def read_spec(stored: bytes, name: str) -> QueueSpec:
    """The settings as they are stored; `StorageDamaged` when they are not what was written for this queue."""
    text, proof, number = stored.rpartition(_PROOF)
    # Earlier versions wrote no checksum.
    text = text + b"}" if proof else stored
    try:
        spec = msgspec.json.decode(text, type=QueueSpec)
        is_known = spec.name == name and _FIELDS.issuperset(msgspec.json.decode(text))
        if is_known and (not proof or int(number[:-1]) == zlib.crc32(text)):
            return spec
    except (msgspec.MsgspecError, ValueError) as error:
        raise _settings_damaged(name) from error
    raise _settings_damaged(name)


def _settings_damaged(name: str) -> StorageDamaged:
    return StorageDamaged(
        f"queue {name!r}: its settings are not what was written",
        remedy="Give the queue its settings again with update_queue(), or restore the file from a backup.",
    )


def write_spec(spec: QueueSpec) -> str:
    """The settings as they are stored, with a checksum."""
    text = msgspec.json.encode(spec)
    return (text[:-1] + _PROOF + b"%d}" % zlib.crc32(text)).decode()


class QueueState:
    """One queue's numbers: what the file says, and what this transaction adds to the counters.

    `returns_us` is a time before which no lease or delay ends; 0 when it is not known. `unwritten` are messages sent in
    this transaction, by any thread, which are written together; `unserved` says that receivers may wait for them.
    """

    __slots__ = (
        "acked",
        "dead",
        "entries",
        "expired",
        "head",
        "id",
        "last_us",
        "name",
        "next",
        "received",
        "redriven",
        "retried",
        "returns_us",
        "seen_us",
        "sent",
        "size",
        "spec",
        "unserved",
        "unwritten",
    )

    def __init__(self, row: tuple[int, bytes, bytes, int, int, int, int]) -> None:
        self.id, name, spec, self.next, self.head, self.last_us, self.seen_us = row
        self.name = name.decode(errors="backslashreplace")
        self.spec = read_spec(spec, self.name)
        self.returns_us = 0
        self.unserved = False
        self.unwritten: list[tuple[Any, ...]] = []
        self._start_counting()

    def take_numbers(self) -> tuple[int, ...]:
        """What is to be written back; the counters begin anew."""
        numbers = (
            self.id,
            self.next,
            self.head,
            self.last_us,
            self.seen_us,
            self.size,
            self.sent,
            self.received,
            self.acked,
            self.retried,
            self.dead,
            self.redriven,
            self.expired,
        )
        self._start_counting()
        return numbers

    def write(self, tx: Transaction) -> None:
        """Write the messages sent so far, so that they can be found."""
        if self.unwritten:
            run_many(tx.connection, _INSERT, self.unwritten)
            self.unwritten = []

    def take_unread(self, limit: int) -> list[tuple[Any, ...]]:
        """The next messages that nobody looked at, if they are sent in this transaction and not yet written."""
        first = self.next - len(self.unwritten)
        if self.head < first or not self.unwritten or self.unwritten[0][0] != first:
            return []
        found = self.unwritten[self.head - first :][:limit]
        # One that was moved here may be too old or damaged, and is looked at as all others are.
        if any(row[_ORIGIN] is not None for row in found):
            return []
        self.head += len(found)
        return found

    def remember(self, row_id: int, receives: int, sent_us: int, first_us: int | None) -> None:
        """Note a settled message for the trail."""
        self.entries.append(ENTRY.pack(row_id, min(receives, 65_535), sent_us, first_us or 0))

    def _start_counting(self) -> None:
        self.size = self.sent = self.received = self.acked = self.retried = self.dead = self.redriven = self.expired = 0
        self.entries: list[bytes] = []


class States:
    """The states of the queues, kept from one transaction to the next as long as nobody else commits."""

    def __init__(self, trail_keep: int) -> None:
        self._trail_keep = trail_keep
        self._kept: dict[int, QueueState] = {}
        self._touched: dict[int, QueueState] = {}
        self._version = self._news = -1

    def get(self, tx: Transaction, queue_id: int) -> QueueState:
        """The queue's state in this transaction, all of it written; `QueueNotFound` when it was deleted."""
        state = self.for_sending(tx, queue_id)
        state.write(tx)
        return state

    def for_sending(self, tx: Transaction, queue_id: int) -> QueueState:
        """The queue's state for somebody who only adds to it."""
        if queue_id in self._touched:
            return self._touched[queue_id]
        self.load(tx, (queue_id,))
        state = self._kept.get(queue_id)
        if state is None:
            raise QueueNotFound("the queue was deleted")
        self._touched[queue_id] = state
        return state

    def load(self, tx: Transaction, queue_ids: Iterable[int]) -> None:
        """Read the states that are not known, at once for somebody who is about to send to all of them."""
        if not self._touched and (version := tx.connection.data_version()) != self._version:
            self._kept.clear()
            self._version = version
        if unknown := [(queue_id,) for queue_id in queue_ids if queue_id not in self._kept]:
            for row in run_many(tx.connection, _LOAD, unknown):
                self._kept[row[0]] = QueueState(row)

    def forget(self, queue_id: int) -> None:
        """Drop a state whose queue is changed or deleted in this transaction."""
        self._kept.pop(queue_id, None)
        self._touched.pop(queue_id, None)

    def add_trail(
        self, tx: Transaction, queue_id: int, kind: str, entries: list[bytes], at_us: int, detail: str | None = None
    ) -> None:
        """Write settled messages into the ring, as one row."""
        if not self._trail_keep:
            return
        tx.connection.execute(_ADD_TRAIL, (queue_id, at_us, kind, b"".join(entries), detail))
        n = tx.connection.last_insert_rowid()
        if n % _TURN_EVERY == 0:
            tx.connection.execute(_TURN_TRAIL, (n - self._trail_keep,))

    def probably_holds_more(self, queue_id: int) -> bool:
        """Whether a receiver had better claim than wait; a guess, made without asking the file."""
        state = self._kept.get(queue_id)
        return state is None or state.head < state.next

    def next_due_us(self, queue_id: int, news: int) -> int | None:
        """A time before which nothing comes unless it is sent; None when that is not known without asking the file."""
        state = self._kept.get(queue_id)
        if state is None or news != self._news or state.spec.fifo or state.head < state.next:
            return None
        return state.returns_us or None

    def store(self, tx: Transaction) -> None:
        """Write what this transaction changed."""
        if unwritten := [row for state in self._touched.values() for row in state.unwritten]:
            run_many(tx.connection, _INSERT, unwritten)
        for state in self._touched.values():
            state.unwritten = []
            if state.entries:
                self.add_trail(tx, state.id, "acked", state.entries, state.last_us)
        numbers = [state.take_numbers() for state in self._touched.values()]
        run_many(tx.connection, _STORE if len(numbers) == 1 else _STORE_MANY, numbers)

    def committed(self, tx: Transaction) -> None:
        """Keep the states as long as nobody else commits."""
        if self._touched:
            self._touched.clear()
            self._version, self._news = tx.connection.data_version(), tx.news

    def drop(self) -> None:
        """Read everything anew."""
        self._kept.clear()
        self._touched.clear()
