"""Topics in the memory of this process, copying into `MemoryQueues` in one step."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from postroad.queues import OutgoingMessage, Queue, SendResult
from postroad.queues.memory import MemoryQueues
from postroad.queues.rules import DEDUP_SECONDS, check_messages, dedup_id
from postroad.queues.spec import MAX_MESSAGE_BYTES
from postroad.topics import rules
from postroad.topics.port import Filter, Subscription, TopicTraits


@dataclass(slots=True)
class _State:
    """What is known of a topic by all who hold it."""

    fifo: bool
    filters: dict[str, rules.Values | None] = field(default_factory=dict)
    remembered: dict[str, tuple[float, SendResult]] = field(default_factory=dict)


class MemoryTopics:
    """All topics of one memory, next to its queues."""

    def __init__(self, queues: MemoryQueues) -> None:
        self._queues = queues
        self._states: dict[str, _State] = {}

    def topic(self, name: str, *, fifo: bool = False) -> MemoryTopic:
        """The topic of this name, made when missing."""
        rules.check_topic_name(name, fifo=fifo)
        with self._queues.shelves.lock:
            state = self._states.setdefault(name, _State(fifo))
        return MemoryTopic(self._queues, name, state)

    def existing(self, name: str, *, fifo: bool = False) -> MemoryTopic:
        """The topic of this name; TopicNotFound when there is none."""
        rules.check_topic_name(name, fifo=fifo)
        with self._queues.shelves.lock:
            state = self._states.get(name)
        if state is None:
            raise rules.no_topic(name, self.topics())
        return MemoryTopic(self._queues, name, state)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        with self._queues.shelves.lock:
            return sorted(self._states)

    def topics_without_subscriptions(self) -> list[str]:
        """The names of the topics that no queue is subscribed to, sorted."""
        with self._queues.shelves.lock:
            return sorted(name for name, state in self._states.items() if not state.filters)

    def delete_topic(self, name: str) -> None:
        """Forget the topic and who was subscribed to it; deleting twice changes nothing."""
        with self._queues.shelves.lock:
            self._states.pop(name, None)


class MemoryTopic:
    """One topic of `MemoryTopics`."""

    def __init__(self, queues: MemoryQueues, name: str, state: _State) -> None:
        self._queues = queues
        self._lock = queues.shelves.lock
        self._state = state
        self.name = name

    @property
    def traits(self) -> TopicTraits:
        """What this topic promises."""
        return TopicTraits(
            fifo=self._state.fifo,
            durable=False,
            atomic_batch=True,
            filters_at_once=True,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        """Copy each message to every queue whose filter matches, all of them in one step."""
        bodies = rules.check_published(messages, fifo=self._state.fifo, limit=MAX_MESSAGE_BYTES)
        with self._lock:
            # All copies are checked before the first one is made: a smaller limit of one queue refuses the batch.
            copies = {name: self._copies(name, messages) for name in self._subscribers()}
            for name, wanted in copies.items():
                check_messages(self._queues.queue_spec(name), [copy for copy in wanted if copy is not None])
            return [
                self._publish(message, body, [(name, wanted[index]) for name, wanted in copies.items()])
                for index, (message, body) in enumerate(zip(messages, bodies, strict=True))
            ]

    def _publish(
        self, message: OutgoingMessage, body: bytes, copies: Sequence[tuple[str, OutgoingMessage | None]]
    ) -> SendResult:
        now = self._queues.clock.monotonic()
        key = dedup_id(message, body)
        known = self._state.remembered.get(key) if self._state.fifo else None
        if known is not None and known[0] > now:
            return known[1]
        for name, copy in copies:
            if copy is not None:
                self._queues.queue(name).send([copy])
        sequence = self._queues.shelves.next_sequence() if self._state.fifo else None
        result = SendResult(ok=True, message_id=str(uuid.uuid4()), sequence=sequence)
        if self._state.fifo:
            self._remember(key, now, result)
        return result

    def _remember(self, key: str, now: float, result: SendResult) -> None:
        remembered = self._state.remembered
        remembered.pop(key, None)
        remembered[key] = (now + DEDUP_SECONDS, result)
        # Entries stand in the order of their publishing, so the oldest come first.
        while next(iter(remembered.values()))[0] <= now:
            del remembered[next(iter(remembered))]

    def _subscribers(self) -> list[str]:
        """The queues that get copies; one that was deleted meanwhile is a subscriber no more."""
        there = set(self._queues.queues())
        for name in [name for name in self._state.filters if name not in there]:
            del self._state.filters[name]
        return list(self._state.filters)

    def _copies(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage | None]:
        filter = self._state.filters[queue]
        keeps_ids = queue.endswith(".fifo")
        copies = messages if keeps_ids else [msgspec.structs.replace(each, dedup_id=None) for each in messages]
        return [copy if rules.lets_through(filter, copy.attributes) else None for copy in copies]

    def subscribe(self, queue: Queue, *, filter: Filter | None = None) -> None:
        """Give the queue a copy from now on. Subscribing again replaces the filter."""
        values = rules.check_filter(filter)
        rules.check_subscriber(self.name, fifo=self._state.fifo, queue=queue)
        with self._lock:
            self._queues.queue(queue.name)
            self._state.filters[queue.name] = values

    def unsubscribe(self, queue: Queue) -> bool:
        """Stop the copies; what the queue holds stays. Says whether it was subscribed."""
        name = rules.check_queue(queue)
        with self._lock:
            known = name in self._subscribers()
            self._state.filters.pop(name, None)
        return known

    def subscriptions(self) -> list[Subscription]:
        """Who gets copies, by queue name."""
        with self._lock:
            return [Subscription(queue=name, filter=self._state.filters[name]) for name in sorted(self._subscribers())]
