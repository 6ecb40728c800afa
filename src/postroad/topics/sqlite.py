"""Topics on the embedded engine: all copies of a batch are made in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from postroad.engine import Engine, Schema, Transaction, every, one, text_of
from postroad.errors import StorageDamaged, TopicNotFound
from postroad.queues import (
    MAX_MESSAGE_BYTES,
    Content,
    OutgoingMessage,
    Queue,
    QueueState,
    SendResult,
    SQLiteQueues,
    check_messages,
    content_of,
    dedup_id,
    queue_missing,
)
from postroad.topics import port
from postroad.topics.port import Filter, Subscription, TopicTraits, Values

_SCHEMA: Final = Schema(
    "topics",
    (
        """
CREATE TABLE topic (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    next INTEGER NOT NULL         -- counts what was published
) STRICT;
CREATE TABLE subscription (
    topic INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    filter TEXT,
    PRIMARY KEY (topic, queue)
) STRICT, WITHOUT ROWID;
""",
    ),
)
_FIND: Final = "SELECT id FROM topic WHERE name = ?"
_ADD: Final = "INSERT INTO topic (name, next) VALUES (?, 1) ON CONFLICT DO NOTHING"
_NAMES: Final = "SELECT name FROM topic ORDER BY name"
_UNSUBSCRIBED: Final = """
SELECT name FROM topic WHERE NOT EXISTS (
    SELECT 1 FROM subscription JOIN queue ON queue.id = subscription.queue WHERE topic = topic.id
) ORDER BY name
"""
_COUNT: Final = "UPDATE topic SET next = next + ? WHERE id = ? RETURNING next"
_SUBSCRIBE: Final = """
INSERT INTO subscription (topic, queue, filter) SELECT ?1, id, ?2 FROM queue WHERE name = ?3
ON CONFLICT DO UPDATE SET filter = iif(?4, filter, excluded.filter) RETURNING queue
"""
_UNSUBSCRIBE: Final = """
DELETE FROM subscription WHERE topic = ? AND queue = (SELECT id FROM queue WHERE name = ?) RETURNING queue
"""
_SUBSCRIPTIONS: Final = """
SELECT queue.id, CAST(queue.name AS BLOB), CAST(filter AS BLOB)
FROM subscription JOIN queue ON queue.id = subscription.queue
WHERE topic = ? ORDER BY queue.name
"""
_SUBSCRIBERS: Final = """
SELECT topic.name, CAST(queue.name AS BLOB)
FROM queue JOIN subscription ON subscription.queue = queue.id JOIN topic ON topic.id = subscription.topic
WHERE queue.name IN (SELECT value FROM json_each(?)) ORDER BY 1, 2
"""
_DELETE: Final = "DELETE FROM topic WHERE name = ?"
_DELETE_SUBSCRIPTIONS: Final = "DELETE FROM subscription WHERE topic = (SELECT id FROM topic WHERE name = ?)"
_TOPIC_BIT: Final = 1 << 61
"""Marks ids of published messages, so that none equals the id of a message in a queue."""

_filter = msgspec.json.Decoder(dict[str, tuple[str, ...]])


class SQLiteTopics:
    """All topics of one file, next to its queues."""

    def __init__(self, engine: Engine, queues: SQLiteQueues) -> None:
        self.engine = engine
        self.queues = queues
        engine.prepare(_SCHEMA)

    def topic(self, name: str, *, fifo: bool = False) -> SQLiteTopic:
        """Return the topic of this name; create it if it does not exist."""
        return self._topic(name, fifo=fifo, create=True)

    def existing(self, name: str, *, fifo: bool = False) -> SQLiteTopic:
        """Return the topic of this name; raise `TopicNotFound` if it does not exist."""
        return self._topic(name, fifo=fifo, create=False)

    def topics(self) -> list[str]:
        return self.engine.read(lambda connection: [name for (name,) in every(connection, _NAMES)])

    def topics_without_subscriptions(self) -> list[str]:
        """Return the names of the topics that no queue is subscribed to, sorted."""
        return self.engine.read(lambda connection: [name for (name,) in every(connection, _UNSUBSCRIBED)])

    def subscribers(self, queues: Collection[str]) -> list[tuple[str, str]]:
        """Return each topic that one of these queues is subscribed to, with the queue, sorted."""
        names = msgspec.json.encode(sorted(queues)).decode()
        rows = self.engine.read(lambda connection: every(connection, _SUBSCRIBERS, (names,)))
        return [(topic, str(text_of(queue))) for topic, queue in rows]

    def delete_topic(self, name: str) -> None:
        """Remove the topic and its subscriptions; deleting twice changes nothing."""

        def work(tx: Transaction) -> None:
            tx.connection.execute(_DELETE_SUBSCRIPTIONS, (name,))
            tx.connection.execute(_DELETE, (name,))

        self.engine.write(work, removes=True)

    def _topic(self, name: str, *, fifo: bool, create: bool) -> SQLiteTopic:
        port.check_topic_name(name, fifo=fifo)
        found = self.engine.read(lambda connection: one(connection, _FIND, (name,)))
        if found is None and not create:
            raise port.no_topic(name, self.topics())

        def add(tx: Transaction) -> Any:
            tx.connection.execute(_ADD, (name,))
            return one(tx.connection, _FIND, (name,))

        return SQLiteTopic(self, (found or self.engine.write(add))[0], name, fifo=fifo)


class SQLiteTopic:
    """One topic in the embedded file."""

    def __init__(self, store: SQLiteTopics, topic_id: int, name: str, *, fifo: bool) -> None:
        self._engine = store.engine
        self._queues = store.queues
        self._id = topic_id
        self._fifo = fifo
        self.name = name
        self.traits = TopicTraits(
            fifo=fifo,
            durable=store.engine.durable,
            atomic_batch=True,
            filters_at_once=True,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        bodies = port.check_published(messages, fifo=self._fifo, limit=MAX_MESSAGE_BYTES)
        if not bodies:
            return []
        contents = [content_of(message, body) for message, body in zip(messages, bodies, strict=True)]
        results = self._engine.write(lambda tx: self._publish(tx, contents))
        if self._engine.clock.monotonic() >= self._queues.sweep_at:
            self._queues.sweep(in_background=True)
        return results

    def subscribe(self, queue: Queue, *, filter: Filter | None = None, keep_filter: bool = False) -> None:
        values = port.check_filter(filter)
        port.check_subscriber(self.name, fifo=self._fifo, queue=queue)
        text = None if values is None else msgspec.json.encode(values).decode()
        row = (self._id, text, queue.name, keep_filter)

        def work(tx: Transaction) -> None:
            self._count(tx, 0)
            if self._change(tx, _SUBSCRIBE, row) is None:
                raise queue_missing(queue.name)

        self._engine.write(work, relieves=True)

    def unsubscribe(self, queue: Queue) -> bool:
        name = port.check_queue(queue)
        removed = self._engine.write(lambda tx: self._change(tx, _UNSUBSCRIBE, (self._id, name)), removes=True)
        return removed is not None

    def _count(self, tx: Transaction, published: int) -> int:
        """Count what is published and return the next number; raise `TopicNotFound` if the topic was deleted."""
        found = one(tx.connection, _COUNT, (published, self._id))
        if found is None:
            raise TopicNotFound(
                f'topic "{self.name}" was deleted',
                field="topic",
                remedy=f"Get it anew with backend.topic({self.name!r}), which creates it, and subscribe its queues.",
            )
        return int(found[0])

    def _change(self, tx: Transaction, statement: str, arguments: tuple[Any, ...]) -> Any:
        self._queues.states.subscriptions.clear()
        return one(tx.connection, statement, arguments)

    def subscriptions(self) -> list[Subscription]:
        rows = self._engine.read(lambda connection: every(connection, _SUBSCRIPTIONS, (self._id,)))
        return [Subscription(str(text_of(name)), self._read_filter(name, text)) for _, name, text in rows]

    def _publish(self, tx: Transaction, contents: Sequence[Content]) -> list[SendResult]:
        first = self._count(tx, len(contents)) - len(contents)
        numbers = [_TOPIC_BIT | self._id << 40 | first + index for index in range(len(contents))]
        known = [self._known(tx, content, number) for content, number in zip(contents, numbers, strict=True)]
        fresh = [content for content, first_number in zip(contents, known, strict=True) if first_number is None]
        subscribed = self._subscribed(tx)
        receivers = [len(subscribed)] * len(fresh)
        for queue_id, filter in subscribed:
            wanted = fresh
            if filter is not None:
                wanted = []
                for place, content in enumerate(fresh):
                    if port.lets_through(filter, content.message.attributes):
                        wanted.append(content)
                    else:
                        receivers[place] -= 1
            if wanted:
                self._copy(tx, self._queues.states.for_sending(tx, queue_id), wanted)
        counted = iter(receivers)
        return [
            self._result(number, next(counted)) if first_number is None else self._result(first_number, None)
            for number, first_number in zip(numbers, known, strict=True)
        ]

    def _subscribed(self, tx: Transaction) -> list[tuple[int, Values | None]]:
        """Return the queues and their filters, which are kept in memory like the states of the queues."""
        states = self._queues.states
        states.refresh(tx)
        found = states.subscriptions.get(self._id)
        if found is None:
            rows = every(tx.connection, _SUBSCRIPTIONS, (self._id,))
            found = states.subscriptions[self._id] = [
                (queue_id, self._read_filter(name, text)) for queue_id, name, text in rows
            ]
            states.load(tx, [queue_id for queue_id, _ in found])
        return found

    def _known(self, tx: Transaction, content: Content, number: int) -> int | None:
        """Return the number of the first message under this dedup id; None if this is the first, or not FIFO."""
        if not self._fifo:
            return None
        return self._queues.verbs.first_under(tx, -self._id, "", dedup_id(content.message, content.body), number)

    def _copy(self, tx: Transaction, state: QueueState, contents: Sequence[Content]) -> None:
        if state.spec.max_message_bytes < MAX_MESSAGE_BYTES:
            # A standard queue ignores the dedup ids of a FIFO topic.
            messages = [content.message for content in contents]
            check_messages(
                state.spec,
                messages if state.spec.fifo else [msgspec.structs.replace(each, dedup_id=None) for each in messages],
            )
        self._queues.verbs.send(tx, state, contents)
        self._queues.claimer.deliver(tx, state)

    def _result(self, number: int, receivers: int | None) -> SendResult:
        sequence = number if self._fifo else None
        return SendResult(True, self._queues.ids.text(number), sequence, receivers=receivers)

    def _read_filter(self, queue: bytes, text: bytes | None) -> dict[str, tuple[str, ...]] | None:
        try:
            return None if text is None else _filter.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StorageDamaged(
                f"topic {self.name!r}: the filter of queue {text_of(queue)!r} is not what was written",
                remedy="Subscribe the queue again with its filter, or restore the file from a backup.",
            ) from error
