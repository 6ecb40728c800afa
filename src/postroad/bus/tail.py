"""The events of a topic as they come, without their classes; and events that are published without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from postroad.bus.config import BusConfig
from postroad.bus.endpoints import GroupQueue, Inlet, OwnQueue
from postroad.bus.groups import Names, check_group, names_of, open_topic
from postroad.bus.publisher import attributes_of, group_of
from postroad.errors import InvalidInput, InvalidMessage, NotSupported, PostroadError, QueueNotFound
from postroad.events import Codec, Envelope, checked_name, uuid7
from postroad.ports import Store
from postroad.queues import Delivery, OutgoingMessage, Queue
from postroad.receiving import read_envelope
from postroad.topics import Topic

_MOST = 10
_SLICE_SECONDS = 0.5
_ORPHAN_AFTER = 60.0
_POLL_SECONDS = 20.0


def tail(
    store: Store,
    topic: str,
    group: str | None = None,
    *,
    types: Collection[str] = (),
    limit: int | None = None,
    timeout: float | None = None,
) -> Generator[Envelope | None, None, None]:
    """Yield the events of a topic from now on, and None for a message that is not an event.

    Without a group they come from a queue that is removed at the end. With one, each event is taken from the group; a
    group that did not exist before is removed at the end.
    """
    names = names_of(topic)
    names.check(group)
    port = open_topic(store, topic, names)
    filter = {"EventType": tuple(types)} if types else None
    deadline = None if timeout is None else time.monotonic() + timeout
    with _inlet(store, port, names, group, filter) as inlet:
        left = limit
        while left is None or left > 0:
            deliveries = _next(inlet, store.clock.monotonic(), left, deadline)
            with closing(_taken(inlet.queue(), deliveries, Codec(store.registry))) as taken:
                for envelope in taken:
                    yield envelope
                    left = None if left is None else left - 1
            if deadline is not None and time.monotonic() >= deadline:
                return


@contextmanager
def _inlet(
    store: Store, port: Topic, names: Names, group: str | None, filter: dict[str, tuple[str, ...]] | None
) -> Iterator[Inlet]:
    config = BusConfig()
    if group is None:
        own = OwnQueue(store, port, names, config, filter, _ORPHAN_AFTER).inlet
        try:
            own.open()
            yield own
        finally:
            own.close()
        return
    check_group(group)
    existed = False
    with suppress(QueueNotFound):
        existed = store.queue(names.group(group)) is not None
    if existed and filter is not None:
        why = f"type: the group {group!r} exists; taking some of its events would change what its members get"
        raise InvalidInput(why, field="type", remedy="Leave out --type, or --group.")
    shared = GroupQueue(store, port, names, config, filter, group)
    try:
        yield shared.inlet
    finally:
        if not existed:
            with suppress(PostroadError):
                port.unsubscribe(shared.source)
            for name in (shared.source.name, names.dead(group)):
                with suppress(PostroadError):
                    store.delete_queue(name)


def _next(inlet: Inlet, now: float, left: int | None, deadline: float | None) -> list[Delivery]:
    queue = inlet.queue()
    wait = _SLICE_SECONDS if queue.traits.short_waits else _POLL_SECONDS
    if deadline is not None:
        wait = min(wait, max(0.0, deadline - time.monotonic()))
    for chore in inlet.chores:
        if (due := chore.due()) is not None and due <= now:
            chore.run()
    return queue.receive(max_messages=_MOST if left is None else min(_MOST, left), wait=wait)


def _taken(queue: Queue, deliveries: list[Delivery], codec: Codec) -> Generator[Envelope | None, None, None]:
    """Yield each event and ack it afterwards; release the others if the caller stops before."""
    waiting = list(deliveries)
    try:
        while waiting:
            delivery = waiting[0]
            try:
                envelope = read_envelope(codec, delivery)
            except PostroadError as error:
                yield None
                try:
                    queue.reject([delivery], reason="undecodable", error=str(error))
                except NotSupported:
                    queue.release([delivery], after=_ORPHAN_AFTER, error=str(error))
            else:
                yield envelope
                queue.ack([delivery])
            waiting.pop(0)
    finally:
        if waiting:
            with suppress(PostroadError):
                queue.release(list(reversed(waiting)))


def envelope_for(
    event_type: str,
    payload: Any,
    *,
    publisher_id: str,
    now: datetime,
    key: str | None = None,
    traceparent: str | None = None,
    new_id: Callable[[], UUID] = uuid7,
) -> Envelope:
    """Return the envelope of an event without its class, as far as its name and payload allow."""
    if not isinstance(payload, dict):
        raise InvalidMessage(f"payload: {type(payload).__name__} is not an object", field="payload")
    texts: dict[str, Any] = {n: value for n in ("session_id", "tenant_id") if isinstance(value := payload.get(n), str)}
    return Envelope(
        event_type=checked_name(event_type),
        event_id=new_id(),
        created_at=now,
        publisher_id=publisher_id,
        payload=payload,
        key=key,
        traceparent=traceparent,
        **texts,
    )


def message_for(envelope: Envelope, body: bytes, *, fifo: bool) -> OutgoingMessage:
    """Return the message that a bus would publish to a topic; the body keeps its JSON form."""
    return OutgoingMessage(
        body,
        attributes_of(envelope),
        group=order_key(envelope) if fifo else None,
        dedup_id=str(envelope.event_id) if fifo else None,
    )


def order_key(envelope: Envelope) -> str:
    """Return what orders this event: its key, else its request, else its publisher."""
    # The one field that the order of an event may depend on and that its envelope does not have.
    event = SimpleNamespace(request_id=envelope.payload.get("request_id"))
    return group_of(None, envelope, event, fifo=True) or envelope.publisher_id
