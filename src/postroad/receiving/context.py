"""What a handler can ask about the event it handles, and the envelope of a delivery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from postroad.events import OUTBOX, Codec, Envelope, envelope_of
from postroad.queues import Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingContext:
    """The delivery behind the event that is being handled."""

    envelope: Envelope
    receive_count: int = 0
    """How often the message was received; 0 on the publisher's own thread."""
    remote: bool = False
    """Whether it came through the transport."""
    replayed: bool = False
    """Whether it came out of an archive."""
    event: object = None
    """The event itself: what is published meanwhile inside this process alone is another one, without a context."""


_current: ContextVar[HandlingContext | None] = ContextVar("postroad_handling", default=None)


def current_context() -> HandlingContext | None:
    """The context of the handler that calls this; None outside, and for events that have no envelope."""
    return _current.get()


def context_of(event: object) -> HandlingContext | None:
    """The delivery of this very event: one that a handler publishes in its process alone has none."""
    context = current_context()
    return context if context is not None and context.event is event else None


@contextmanager
def handling(context: HandlingContext | None) -> Iterator[None]:
    """Let handlers inside the block see this context."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


PUBLISHER_ID = "PublisherId"


def read_envelope(codec: Codec, delivery: Delivery) -> Envelope:
    """Return the envelope in the body; an event from the outbox names the dispatcher's service as its publisher."""
    envelope = codec.decode(delivery.body)
    publisher = delivery.attributes.get(PUBLISHER_ID)
    if envelope.publisher_id != OUTBOX or not publisher:
        return envelope
    return envelope_of({**vars(envelope), "publisher_id": publisher})
