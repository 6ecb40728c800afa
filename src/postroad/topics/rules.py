"""What every topic refuses, and which messages a filter lets through."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from postroad.errors import ConfigurationError, InvalidInput, InvalidMessage, InvalidName, TopicNotFound
from postroad.queues import OutgoingMessage, QueueSpec, check_messages
from postroad.settings import nearest
from postroad.topics.port import EVERYTHING, Filter

Values = Mapping[str, tuple[str, ...]]

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
_STANDARD = QueueSpec("topic")
_FIFO = QueueSpec("topic.fifo", fifo=True)


def check_topic_name(name: object, *, fifo: bool) -> str:
    """Refuse a topic name that SNS would refuse."""
    if not isinstance(name, str) or not 1 <= len(name) <= 256 or _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"name: {name!r} is not a topic name",
            field="name",
            remedy="Use 1 to 256 letters, digits, '-' or '_', with '.fifo' at the end exactly when it is FIFO.",
        )
    if name.endswith(".fifo") is not fifo:
        raise InvalidName(
            f"topic name {name!r} and fifo={fifo} disagree",
            field="name",
            remedy="End the name of a FIFO topic, and of no other, with '.fifo'.",
        )
    return name


def no_topic(name: str, names: Collection[str]) -> TopicNotFound:
    """The error of a topic that is not among those that exist."""
    return TopicNotFound(f'topic "{name}" does not exist', field="topic", nearest=nearest(name, names))


def is_arn(name: object) -> bool:
    """Whether a topic is named by its address on AWS, which is taken as it is."""
    return isinstance(name, str) and name.startswith("arn:")


def check_published(messages: Sequence[OutgoingMessage], *, fifo: bool, limit: int) -> list[bytes]:
    """Return the bodies as bytes, or refuse the whole batch naming the entry and the field."""
    bodies = check_messages(_FIFO if fifo else _STANDARD, messages, limit=limit)
    for index, message in enumerate(messages):
        if message.delay:
            field = "delay" if len(messages) == 1 else f"messages[{index}].delay"
            raise InvalidMessage(f"{field}: a topic delays nothing; give the queue a delay", field=field)
    return bodies


def check_queue(queue: object) -> str:
    """Return the queue's name, or refuse what is no queue, such as a name alone."""
    name = getattr(queue, "name", None)
    if not isinstance(name, str):
        raise InvalidInput(
            f"queue: {type(queue).__name__} is not a Queue", field="queue", remedy="Pass backend.queue(name)."
        )
    return name


def check_subscriber(topic: str, *, fifo: bool, queue: object) -> None:
    """Refuse a queue whose order the topic could not keep."""
    name = check_queue(queue)
    if name.endswith(".fifo") and not fifo:
        raise ConfigurationError(
            f"queue: {name!r} is FIFO, but topic {topic!r} keeps no order",
            field="queue",
            remedy="Subscribe a standard queue, or publish to a FIFO topic.",
        )


def check_filter(filter: Filter | None) -> Values | None:
    """Return the filter with its values as tuples, or refuse it naming the attribute."""
    given: object = filter
    if given is None:
        return None
    if given is EVERYTHING:
        return {}
    if not isinstance(given, Mapping) or not given:
        raise InvalidInput(f"filter: {filter!r} is not a mapping of attribute names to values", field="filter")
    return {name: _values(name, values) for name, values in given.items()}


def _values(name: object, values: object) -> tuple[str, ...]:
    # A text is a collection of its letters, and never meant as one.
    given = tuple(values) if isinstance(values, Collection) and not isinstance(values, str | bytes) else ()
    if not isinstance(name, str) or not name or not given or not all(isinstance(each, str) for each in given):
        field = f"filter.{name}"
        raise InvalidInput(f"{field}: {values!r} is not a collection of one or more texts", field=field)
    return given


def lets_through(filter: Values | None, attributes: Mapping[str, str]) -> bool:
    """Whether every attribute the filter names has one of its values."""
    return filter is None or all(attributes.get(name) in values for name, values in filter.items())
