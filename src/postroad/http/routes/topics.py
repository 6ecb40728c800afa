"""`/topics/{topic}/events`: publishing events of a topic without their classes."""

from __future__ import annotations

import functools
from typing import Annotated, Any
from uuid import UUID

from litestar import Response
from litestar.params import PathParameter

from postroad.errors import InvalidInput, PostroadError
from postroad.events import Codec, Envelope
from postroad.http import forms
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import example, route
from postroad.http.requests import ApiRequest
from postroad.telemetry import valid_traceparent
from postroad.views import EventPublished
from postroad.wiring import Backend

TopicName = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_-]{1,80}(\.fifo)?$", description="The topic's name.")]
PublishBody = Annotated[
    forms.NewTopicEvent, example({"type": "orders.placed", "payload": {"id": 7}, "key": "customer-1"})
]


@route("POST /topics/{topic:str}/events", "publish", EventPublished, 409, 413, status=202)
async def publish_to_topic(request: ApiRequest, topic: TopicName, data: PublishBody) -> Response[Any]:
    """Publish one event. A type that this server has loaded is checked; any other name is accepted."""
    context = request.context
    envelope = _envelope(request, data)
    _check(context.backend, envelope)
    return await perform(request, lambda: _publish(context.backend, topic, envelope))


def _envelope(request: ApiRequest, data: forms.NewTopicEvent) -> Envelope:
    # A server that publishes nothing does not import the bus.
    from postroad.bus.tail import envelope_for

    context = request.context
    try:
        return envelope_for(
            data.type,
            data.payload,
            publisher_id=context.settings.app,
            now=context.clock.now(),
            key=data.key,
            traceparent=valid_traceparent(request.raw_header(b"traceparent")),
            **_given_id(data.event_id),
        )
    except PostroadError as error:
        if error.field != "name":
            raise
        raise InvalidInput(f"type: {error}", field="type") from error


def _given_id(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = UUID(text)
    except ValueError:
        raise InvalidInput(f"event_id: {text[:100]!r} is not a UUID", field="event_id") from None
    return {"new_id": functools.partial(UUID, int=found.int)}


def _check(backend: Backend, envelope: Envelope) -> None:
    """Refuse a payload that the registered class of the type does not accept."""
    if backend.registry.find(envelope.event_type) is not None:
        Codec(backend.registry).unwrap(envelope)


def _publish(backend: Backend, topic: str, envelope: Envelope) -> Answer:
    from postroad.bus.groups import names_of
    from postroad.bus.tail import message_for

    names = names_of(topic, fifo=f"{topic}.fifo" in backend.topics())
    port = backend.topic(names.topic, fifo=names.fifo)
    [result] = port.publish([message_for(envelope, Codec(backend.registry).encode(envelope), fifo=names.fifo)])
    if result.error is not None:
        raise result.error
    return Answer(202, EventPublished(str(envelope.event_id)))
