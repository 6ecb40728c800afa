"""The topic and the queues behind it."""

from __future__ import annotations

from examples.transfers.names import HEARS, QUEUES, TOPIC, dead_letters_of

from postroad import Backend, Queue, QueueSpec, Topic

# Short, so that what a killed consumer held comes back soon.
_VISIBILITY = 3.0
# A kill in the middle counts as a receive, and nothing here may die of being killed.
_MAX_RECEIVES = 1_000


def make(backend: Backend) -> None:
    """Make the topic, the queues, their dead letters and the subscriptions."""
    topic = transfers(backend)
    for consumer, name in QUEUES.items():
        letters = backend.create_queue(QueueSpec(dead_letters_of(name), fifo=True))
        spec = QueueSpec(
            name, fifo=True, visibility=_VISIBILITY, dead_letter=letters.name, max_receives=_MAX_RECEIVES
        )  # fmt: skip
        topic.subscribe(backend.create_queue(spec), filter={"EventType": HEARS[consumer]})


def transfers(backend: Backend) -> Topic:
    """The topic of all events."""
    return backend.topic(TOPIC, fifo=True)


def held(queue: Queue) -> int:
    """How many messages a queue holds."""
    stats = queue.stats()
    return stats.visible + stats.in_flight + stats.delayed
