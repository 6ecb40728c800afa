"""A queue's rows and numbers within one transaction: read once, changed in memory, written once before the commit."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from postroad.engine import Transaction, one, run_many, text_of
from postroad.errors import QueueNotFound, StorageDamaged
from postroad.queues.port import MessageState, OutgoingMessage
from postroad.queues.rules import QueueSpec
from postroad.queues.sqlite.tables import ID_BITS

DAMAGED: Final = "what is stored is not what was sent"

# Texts are read as bytes: only a correct checksum means that they can be decoded.
GROUP_AND_ATTRIBUTES: Final = "CAST(m.group_name AS BLOB), CAST(m.attributes AS BLOB)"
_COLUMNS: Final = """m.id, m.sent_us, m.grp, m.origin, CAST(m.group_name AS BLOB), m.body, CAST(m.attributes AS BLOB),
    m.checksum"""
_ERROR: Final = "CAST(lease.error AS BLOB)"
LEASED_ROWS: Final = f"""
SELECT {_COLUMNS}, lease.receives, lease.first_us, {_ERROR}, lease.undone
FROM lease JOIN message AS m ON m.id = lease.id
"""  # noqa: S608 - _COLUMNS is a constant
JOINED: Final = "FROM message AS m LEFT JOIN lease ON lease.id = m.id"
COLUMNS: Final = f"{_COLUMNS}, coalesce(lease.receives, 0), lease.first_us, {_ERROR}, coalesce(lease.undone, 0)"
"""The columns of a `Row` whose message may have no lease."""
MAX_ID: Final = (1 << 62) - 1
ENTRY: Final = struct.Struct(">qHqq")
"""How the trail stores a message: the id it was first sent under, its receives, when it was sent, first received."""

_MESSAGE_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_RECEIPT: Final = re.compile(r"(\d{1,19})-(\d{1,9})")
_VARIANT: Final = 0b10 << 62
_LOCKED_UNTIL: Final = "SELECT max(visible_us) FROM lease WHERE grp = ? AND held = 1"
_HEAD: Final = """
SELECT max(coalesce(m.due_us, 0), coalesce(lease.visible_us, 0))
FROM message AS m LEFT JOIN lease ON lease.id = m.id WHERE m.grp = ? ORDER BY m.id LIMIT 1
"""
_SET_GROUP: Final = "UPDATE grp SET visible_us = ? WHERE id = ?"
_DELETE_GROUP: Final = "DELETE FROM grp WHERE id = ?"
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
_ADD_TRAIL: Final = "INSERT INTO trail (queue, at_us, kind, entries, detail, events) VALUES (?, ?, ?, ?, ?, ?)"
_TURN_TRAIL: Final = "DELETE FROM trail WHERE n <= ?"
_ADD_TRACEBACK: Final = """
INSERT INTO traceback (message, lines) VALUES (?, ?) ON CONFLICT (message) DO UPDATE SET lines = excluded.lines
RETURNING n
"""
_TURN_TRACEBACKS: Final = "DELETE FROM traceback WHERE n <= ?"
_TRACEBACKS_KEPT: Final = 10_000
_TURN_EVERY: Final = 64
_PROOF: Final = b',"crc32":'
_FIELDS: Final = frozenset(field.name for field in fields(QueueSpec))
COUNTED: Final = ("sent", "received", "acked", "retried", "dead", "redriven", "expired")
_NUMBERS: Final = attrgetter("id", "next", "head", "last_us", "seen_us", "size", *COUNTED)
_attributes = msgspec.json.Decoder(dict[str, str])

Text = str | bytes | None
"""A text that was just written, or bytes as they were read."""


class Row(NamedTuple):
    """A message with the columns of its lease."""

    id: int
    sent_us: int
    grp: int | None
    origin: int | None
    group_name: Text
    body: bytes
    attributes: Text
    checksum: int
    receives: int
    first_us: int | None
    error: Text
    undone: int

    @property
    def first_id(self) -> int:
        """Return the id it was first sent under."""
        return self.id if self.origin is None else self.origin


class Content(NamedTuple):
    """A message as it is stored in every queue that gets it."""

    message: OutgoingMessage
    body: bytes
    attributes: str | None
    checksum: int


class MessageIds:
    """UUIDs (version 8) made of 60 bits that are unique to the file and the 62 bits of the row id."""

    def __init__(self, salt: int) -> None:
        self._prefix = f"{salt >> 28:08x}-{salt >> 12 & 0xFFFF:04x}-8{salt & 0xFFF:03x}-"

    def text(self, row_id: int) -> str:
        """Return the message id of a row."""
        # With the variant it is "0x" and always 16 digits, which is faster than a format.
        digits = hex(_VARIANT | row_id)
        return f"{self._prefix}{digits[2:6]}-{digits[6:]}"

    def row_id(self, text: str) -> int | None:
        """Return the row a message was first stored in; None if the id is not of this file."""
        if _MESSAGE_ID.fullmatch(text) is None or not text.startswith(self._prefix):
            return None
        return int(text[19:].replace("-", ""), 16) & MAX_ID


def write_attributes(attributes: Mapping[str, str]) -> str | None:
    """Return the attributes as they are stored."""
    return msgspec.json.encode(attributes).decode() if attributes else None


def read_attributes(text: Text) -> dict[str, str]:
    """Return the attributes as they were sent."""
    return {} if text is None else _attributes.decode(text)


def salvaged_attributes(text: Text) -> dict[str, str]:
    """Return the attributes as they were sent or, if they are damaged, their text under one name."""
    try:
        return read_attributes(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {"Damaged": str(text_of(text))}


def checksum(body: bytes, attributes: Text, group: Text) -> int:
    """Return a number that differs when body, attributes or group were changed."""
    total = zlib.crc32(body)
    if attributes is not None:
        total = zlib.crc32(attributes.encode() if isinstance(attributes, str) else attributes, total)
    if group is not None:
        total = zlib.crc32(group.encode() if isinstance(group, str) else group, total)
    return total


def content_of(message: OutgoingMessage, body: bytes) -> Content:
    """Return the message with what is stored beside its body."""
    if not message.attributes and message.group is None:
        return Content(message, body, None, zlib.crc32(body))
    attributes = write_attributes(message.attributes)
    return Content(message, body, attributes, checksum(body, attributes, message.group))


def is_damaged(row: Row) -> bool:
    """Return whether body, attributes or group are not those that were sent."""
    if checksum(row.body, row.attributes, row.group_name) == row.checksum:
        return False
    # Earlier versions left the group out.
    group = row.group_name
    is_text = not isinstance(group, bytes) or str(text_of(group)).encode() == group
    return not is_text or checksum(row.body, row.attributes, None) != row.checksum


def message_state(visible_us: int, held: int, now: int) -> MessageState:
    """Return whether a message can be received, is with a receiver, or waits for its time."""
    return "visible" if visible_us <= now else "in_flight" if held else "delayed"


def channel(queue_id: int) -> str:
    """Return the engine's channel for changes of a queue."""
    return f"q{queue_id}"


def id_range(queue_id: int) -> tuple[int, int]:
    """Return the bounds of the ids of a queue's messages, which lie between them."""
    return queue_id << ID_BITS, (queue_id + 1) << ID_BITS


def read_receipt(text: str) -> tuple[int, int]:
    """Return the row and number of a receipt; (-1, -1), which matches no lease, for a foreign one."""
    row_id, _, number = text.partition("-")
    if text.isascii() and row_id.isdigit() and number.isdigit() and len(row_id) < 19 and len(number) < 10:
        return int(row_id), int(number)
    match = _RECEIPT.fullmatch(text)
    return (-1, -1) if match is None or int(match[1]) > MAX_ID else (int(match[1]), int(match[2]))


def regroup(tx: Transaction, queue_id: int, groups: Iterable[int | None], monotonic_us: int) -> None:
    """Set when each group is free again after its leases or messages changed; remove the empty ones."""
    for group in groups:
        if group is None:
            continue
        head = one(tx.connection, _HEAD, (group,))
        if head is None:
            tx.connection.execute(_DELETE_GROUP, (group,))
            continue
        locked_until = one(tx.connection, _LOCKED_UNTIL, (group,))[0] or 0
        # A group that becomes free goes behind those that are free already, so that none starves.
        tx.connection.execute(_SET_GROUP, (max(locked_until, head[0], monotonic_us), group))
        if locked_until <= monotonic_us:
            tx.touch(channel(queue_id))


@lru_cache(maxsize=16_384)
def read_spec(stored: bytes, name: str) -> QueueSpec:
    """Return the stored settings; raise `StorageDamaged` if they are not those written for this queue."""
    text, proof, number = stored.rpartition(_PROOF)
    # Earlier versions wrote no checksum.
    text = text + b"}" if proof else stored
    cause: Exception | None = None
    try:
        spec = msgspec.json.decode(text, type=QueueSpec)
        is_known = spec.name == name and _FIELDS.issuperset(msgspec.json.decode(text))
        if is_known and (not proof or int(number[:-1]) == zlib.crc32(text)):
            return spec
    except (msgspec.MsgspecError, ValueError) as error:
        cause = error
    raise StorageDamaged(
        f"queue {name!r}: its settings are not what was written",
        remedy="Give the queue its settings again from a program, or restore the file from a backup.",
    ) from cause


def write_spec(spec: QueueSpec) -> str:
    """Return the settings as they are stored, with a checksum."""
    text = msgspec.json.encode(spec)
    return (text[:-1] + _PROOF + b"%d}" % zlib.crc32(text)).decode()


class QueueState:
    """One queue's numbers: the stored ones, and what this transaction adds to the counters.

    No lease or delay ends before `returns_us`; 0 means that this time is not known. `unwritten` are messages sent in
    this transaction, by any thread, which are written together; `unserved` means that receivers may wait for them.
    """

    __slots__ = (
        *("entries", "events", "head", "id", "last_us", "name", "next", "returns_us", "seen_us", "size", "spec"),
        *("unserved", "unwritten", *COUNTED),
    )

    def __init__(self, row: tuple[int, bytes, bytes, int, int, int, int]) -> None:
        self.id, name, spec, self.next, self.head, self.last_us, self.seen_us = row
        self.name = name.decode(errors="backslashreplace")
        self.spec = read_spec(spec, self.name)
        self.returns_us = 0
        self.unserved = False
        self.unwritten: list[tuple[Any, ...]] = []
        self.reset_counters()

    def write(self, tx: Transaction) -> None:
        """Write the messages sent so far, so that they can be found."""
        if self.unwritten:
            run_many(tx.cursor, _INSERT, self.unwritten)
            self.unwritten = []

    def take_unread(self, limit: int) -> list[tuple[Any, ...]]:
        """Return the next messages no receiver has seen, if this transaction sent them and has not written them."""
        first = self.next - len(self.unwritten)
        if self.head < first or not self.unwritten or self.unwritten[0][0] != first:
            return []
        found = self.unwritten[self.head - first :][:limit]
        # A message that was moved here may be too old or damaged, and takes the usual way.
        if any(row[_ORIGIN] is not None for row in found):
            return []
        self.head += len(found)
        return found

    def reset_counters(self) -> None:
        """Start counting again, after the counters were stored."""
        self.size = self.sent = self.received = self.acked = self.retried = self.dead = self.redriven = self.expired = 0
        self.entries: list[bytes] = []
        self.events: list[str] = []


class States:
    """The states of the queues, kept from one transaction to the next as long as nobody else commits."""

    def __init__(self, trail_keep: int) -> None:
        self.subscriptions: dict[int, list[Any]] = {}
        """What the topics know of their subscriptions. It is kept as long as the states are."""
        self._trail_keep = trail_keep
        self._kept: dict[int, QueueState] = {}
        self._touched: dict[int, QueueState] = {}
        self._version = self._news = -1

    def get(self, tx: Transaction, queue_id: int) -> QueueState:
        """Return the queue's state with all its messages written; raise `QueueNotFound` if it was deleted."""
        state = self.for_sending(tx, queue_id)
        state.write(tx)
        return state

    def for_sending(self, tx: Transaction, queue_id: int) -> QueueState:
        """Return the queue's state for a caller that only adds messages."""
        if queue_id in self._touched:
            return self._touched[queue_id]
        self.refresh(tx)
        if queue_id not in self._kept:
            self.load(tx, (queue_id,))
        state = self._kept.get(queue_id)
        if state is None:
            raise QueueNotFound("the queue was deleted")
        self._touched[queue_id] = state
        return state

    def refresh(self, tx: Transaction) -> None:
        """Forget what was kept if another connection has committed since."""
        if not self._touched and (version := tx.connection.data_version()) != self._version:
            self._kept.clear()
            self.subscriptions.clear()
            self._version = version

    def load(self, tx: Transaction, queue_ids: Iterable[int]) -> None:
        """Read the states that are not in memory by one statement, for a caller that is about to use all of them."""
        if unknown := [(queue_id,) for queue_id in queue_ids if queue_id not in self._kept]:
            for row in run_many(tx.cursor, _LOAD, unknown):
                self._kept[row[0]] = QueueState(row)

    def forget(self, queue_id: int) -> None:
        """Drop the state of a queue that this transaction changes or deletes."""
        self.subscriptions.clear()
        self._kept.pop(queue_id, None)
        self._touched.pop(queue_id, None)

    def add_trail(
        self,
        tx: Transaction,
        queue_id: int,
        kind: str,
        entries: bytes,
        at_us: int,
        detail: str | None = None,
        events: str | None = None,
    ) -> None:
        """Write settled messages into the ring, as one row."""
        if not self._trail_keep:
            return
        tx.cursor.execute(_ADD_TRAIL, (queue_id, at_us, kind, entries, detail, events))
        n = tx.connection.last_insert_rowid()
        if n % _TURN_EVERY == 0:
            tx.connection.execute(_TURN_TRAIL, (n - self._trail_keep,))

    def add_traceback(self, tx: Transaction, first_id: int, lines: str | None) -> None:
        """Store where a message failed last, if that is known."""
        if lines is not None:
            n = one(tx.connection, _ADD_TRACEBACK, (first_id, lines))[0]
            if n % _TURN_EVERY == 0:
                tx.connection.execute(_TURN_TRACEBACKS, (n - _TRACEBACKS_KEPT,))

    def probably_holds_more(self, queue_id: int) -> bool:
        """Guess, without reading the file, whether a claim would find a message."""
        state = self._kept.get(queue_id)
        return state is None or state.head < state.next

    def next_due_us(self, queue_id: int, news: int) -> int | None:
        """Return a time before which only a send brings messages; None if the file must be read to know it."""
        state = self._kept.get(queue_id)
        if state is None or news != self._news or state.spec.fifo or state.head < state.next:
            return None
        return state.returns_us or None

    def store(self, tx: Transaction) -> None:
        """Write what this transaction changed."""
        if not self._touched:
            return
        unwritten: list[tuple[Any, ...]] = []
        for state in self._touched.values():
            unwritten += state.unwritten
        if unwritten:
            run_many(tx.cursor, _INSERT, unwritten)
        numbers = []
        for state in self._touched.values():
            state.unwritten = []
            if state.entries:
                events = " ".join(state.events) or None
                self.add_trail(tx, state.id, "acked", b"".join(state.entries), state.last_us, events=events)
            numbers.append(_NUMBERS(state))
            state.reset_counters()
        run_many(tx.cursor, _STORE if len(numbers) == 1 else _STORE_MANY, numbers)

    def committed(self, tx: Transaction) -> None:
        """Keep the states as long as nobody else commits."""
        if self._touched:
            self._touched.clear()
            self._version, self._news = tx.connection.data_version(), tx.news

    def drop(self) -> None:
        """Forget all states, so that they are read again."""
        self.subscriptions.clear()
        self._kept.clear()
        self._touched.clear()
