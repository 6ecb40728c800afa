"""The part `dispatcher`: publishes what the application records in its outbox; and the topic of an outbox."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from postroad.errors import PostroadError, TopicNotFound
from postroad.settings import Settings, aws_place, sns_arn
from postroad.telemetry import get_logger
from postroad.wiring import Backend, connect

if TYPE_CHECKING:
    from postroad.events import DomainEvent
    from postroad.outbox import Outbox
    from postroad.topics import Topic


def run_dispatcher(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Publish the events of the configured outbox until `stop` is set; do nothing if none is configured."""
    name = configured_topic(settings)
    if settings.outbox_dsn is None or name is None:
        stop.wait()
        return
    from postroad.outbox import Outbox, OutboxDispatcher

    with closing(Outbox.open(settings.outbox_dsn)) as outbox:
        outbox.require_schema()
        # A topic on AWS is made by a deployment, one in the file by whoever uses it first.
        with open_topic(name, settings, create=backend.kind == "sqlite", outbox=outbox) as topic:
            OutboxDispatcher(outbox, topic, service=settings.outbox_service).run(stop)


def configured_topic(settings: Settings) -> str | None:
    """Return the topic of the environment, or else of the file."""
    if settings.source("outbox_topic") == "env":
        return settings.outbox_topic
    return sns_arn() or settings.outbox_topic


@contextmanager
def open_topic(name: str, settings: Settings, *, create: bool = False, outbox: Outbox | None = None) -> Iterator[Topic]:
    """Open the topic to publish to; raise `TopicNotFound` if it does not exist, and warn if it has no subscriptions.

    Tasks in the `outbox` are submitted to the same backend.
    """
    with connect(store_of(settings.url, name), trail_keep=settings.trail_keep) as backend:
        try:
            topic = backend.topic(name, fifo=name.endswith(".fifo"), create=create)
        except TopicNotFound as error:
            error.remedy = "Name a topic that exists, or make this one with `postroad outbox run --create-topic`."
            raise
        # Whoever may only publish cannot list the subscriptions.
        with suppress(PostroadError):
            if not topic.subscriptions():
                get_logger("outbox").warning("outbox_no_receivers", topic=topic.name)
        if outbox is not None:
            outbox.submit_tasks = partial(_submit_tasks, outbox, backend)
        yield topic


def _submit_tasks(outbox: Outbox, backend: Backend, events: Sequence[DomainEvent]) -> Sequence[PostroadError | None]:
    """Submit the first tasks in an outbox, and let a producer take over; most outboxes hold events only."""
    from postroad.tasks import TaskProducer

    TaskProducer(backend, outbox=outbox)
    assert outbox.submit_tasks is not None
    return outbox.submit_tasks(events)


def store_of(url: str, topic: str) -> str:
    """Return the backend's address; an ARN names AWS and its region, else $AWS_REGION does if no region is named."""
    is_arn = topic.startswith("arn:")
    named = url.removeprefix("aws://") if url.startswith("aws://") else None
    if (named is None and not is_arn) or (named and not named.startswith("?")):
        return url
    region = topic.split(":")[3] if is_arn and topic.count(":") >= 5 else ""
    return f"aws://{region or aws_place()[0]}{named or ''}"
