"""Putting messages into a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from postroad.engine import Engine, Transaction, one
from postroad.queues.port import OutgoingMessage, SendResult
from postroad.queues.rules import DEDUP_SECONDS, dedup_id
from postroad.queues.sqlite.rows import MessageIds, channel, checksum, write_attributes
from postroad.queues.sqlite.state import QueueState

_DELAY: Final = """
INSERT INTO lease (id, queue, visible_us, held, receives, due_wall_us, sent_us) VALUES (?, ?, ?, 0, 0, ?, ?)
"""
_GROUP: Final = "SELECT id FROM grp WHERE queue = ? AND name = ?"
_ADD_GROUP: Final = "INSERT INTO grp (queue, name, visible_us) VALUES (?, ?, ?) RETURNING id"
_KNOWN: Final = "SELECT message, until_us FROM dedup WHERE scope = ? AND grp = ? AND id = ?"
_REMEMBER: Final = """
INSERT OR REPLACE INTO dedup (scope, grp, id, message, until_us, until_wall_us) VALUES (?, ?, ?, ?, ?, ?)
"""
_DEDUP_US: Final = int(DEDUP_SECONDS * 1_000_000)


class Sender:
    """Writes messages of the embedded queues."""

    def __init__(self, engine: Engine, ids: MessageIds) -> None:
        self._engine = engine
        self._ids = ids

    def send(
        self, tx: Transaction, state: QueueState, messages: Sequence[OutgoingMessage], bodies: Sequence[bytes]
    ) -> list[SendResult]:
        """Store the messages behind what the queue holds."""
        state.last_us = max(state.last_us, self._engine.now_us())
        monotonic_us = self._engine.monotonic_us()
        if state.spec.fifo:
            return [
                self._send_ordered(tx, state, message, body, monotonic_us)
                for message, body in zip(messages, bodies, strict=True)
            ]
        return self._send_standard(tx, state, messages, bodies, monotonic_us)

    def _send_standard(
        self,
        tx: Transaction,
        state: QueueState,
        messages: Sequence[OutgoingMessage],
        bodies: Sequence[bytes],
        monotonic_us: int,
    ) -> list[SendResult]:
        rows, results, now_us, row_id, any_delayed = state.unwritten, [], state.last_us, state.next, False
        for message, body in zip(messages, bodies, strict=True):
            attributes = write_attributes(message.attributes)
            proof = checksum(body, attributes, message.group)
            rows.append((row_id, now_us, None, None, None, message.group, body, attributes, proof))
            if delay_us := int((message.delay or state.spec.delay) * 1_000_000):
                tx.connection.execute(_DELAY, (row_id, state.id, monotonic_us + delay_us, now_us + delay_us, now_us))
                state.returns_us, any_delayed = 0, True
                tx.touch(channel(state.id))
            results.append(SendResult(True, self._ids.text(row_id), row_id))
            row_id += 1
        state.next = row_id
        if any_delayed:
            # It is given out by its lease, which is found beside its message.
            state.write(tx)
        state.size += len(bodies)
        state.sent += len(bodies)
        return results

    def _send_ordered(
        self, tx: Transaction, state: QueueState, message: OutgoingMessage, body: bytes, monotonic_us: int
    ) -> SendResult:
        group = message.group or ""
        scope = group if state.spec.dedup_scope == "group" else ""
        unique = dedup_id(message, body)
        if (first := self.known(tx, state.id, scope, unique)) is not None:
            return SendResult(True, self._ids.text(first), first)
        self.remember(tx, state.id, scope, unique, state.next)
        attributes = write_attributes(message.attributes)
        delay_us = int(state.spec.delay * 1_000_000)
        row_id = self.append(
            tx, state, (state.last_us, group, body, attributes), due_us=monotonic_us + delay_us if delay_us else None
        )
        state.sent += 1
        return SendResult(True, self._ids.text(row_id), row_id)

    def append(
        self,
        tx: Transaction,
        state: QueueState,
        content: tuple[int, str | None, bytes, str | None],
        *,
        due_us: int | None = None,
        origin: int | None = None,
        damaged: bool = False,
    ) -> int:
        """Store one message, given its time, group, body and attributes, at the end of the queue.

        What is damaged stays known as such.
        """
        sent_us, group_name, body, attributes = content
        grp = None
        if state.spec.fifo and group_name is not None:
            grp = self._group(tx, state.id, group_name, due_us or self._engine.monotonic_us())
        row_id = state.next
        proof = checksum(body, attributes, group_name) ^ damaged
        row = (row_id, sent_us, grp, due_us, origin, group_name, body, attributes, proof)
        state.unwritten.append(row)
        state.next = row_id + 1
        state.size += 1
        return row_id

    def known(self, tx: Transaction, scope: int, group: str, unique: str) -> int | None:
        """The first message under this id, if that was less than five minutes ago."""
        found = one(tx.connection, _KNOWN, (scope, group, unique))
        return int(found[0]) if found is not None and found[1] > self._engine.monotonic_us() else None

    def remember(self, tx: Transaction, scope: int, group: str, unique: str, row_id: int) -> None:
        """Know the id for five minutes from now; the sweeper forgets it later."""
        now = self._engine.monotonic_us()
        entry = (scope, group, unique, row_id, now + _DEDUP_US, self._engine.now_us() + _DEDUP_US)
        tx.connection.execute(_REMEMBER, entry)

    def _group(self, tx: Transaction, queue_id: int, name: str, free_us: int) -> int:
        found = one(tx.connection, _GROUP, (queue_id, name))
        if found is None:
            found = one(tx.connection, _ADD_GROUP, (queue_id, name, free_us))
        return int(found[0])
