"""`/events` and `/topics/{topic}/events`: publishing as an agent, and publishing to a topic without its classes.

The token says which agent publishes; only an operator names another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Response
from litestar.params import PathParameter

from postroad.agents import AgentEvent, Published, check_agent_id, is_agent_id
from postroad.errors import IdentityMismatch, InvalidEvent, InvalidInput, PostroadError
from postroad.events import Codec, Envelope, uuid7
from postroad.http import forms
from postroad.http.forms import misfit
from postroad.http.idempotency import perform
from postroad.http.openapi import example, route
from postroad.http.requests import ANY_AGENT, ApiRequest
from postroad.telemetry import valid_traceparent
from postroad.views import EventAccepted, EventBatch, EventPublished, accepted, event_outcome
from postroad.wiring import Backend

_EXAMPLE = {"agentId": "ann", "eventType": "order.placed", "data": {"id": 7}, "timestamp": "2025-07-01T12:00:00.000Z"}
EventBody = Annotated[forms.Event, example(_EXAMPLE)]
EventsBody = Annotated[forms.Events, example({"events": [_EXAMPLE]})]
TopicName = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_-]{1,80}(\.fifo)?$", description="The topic's name.")]
PublishBody = Annotated[
    forms.NewTopicEvent, example({"type": "orders.placed", "payload": {"id": 7}, "key": "customer-1"})
]


@route("POST /events", "publish", EventAccepted, 404, 409, 413, status=202, agent=ANY_AGENT)
async def publish_event(request: ApiRequest, data: EventBody) -> Response[Any]:
    """Publish one event. It is durable when the answer arrives."""
    event = _event(data, _caller(request))
    await _charge(request, [event.agent_id])

    def effect() -> EventAccepted:
        [outcome] = _publish(request, [event])
        return accepted(outcome)

    return await perform(request, effect)


@route("POST /events/batch", "publish", EventBatch, 409, 413, status=202, agent=ANY_AGENT)
async def publish_events(request: ApiRequest, data: EventsBody) -> Response[Any]:
    """Publish up to 500 events. An invalid one is answered `ok: false` and holds back later ones of its agent only."""
    caller = _caller(request)
    entries = [_entry(entry, caller) for entry in data.events]
    await _charge(request, [event.agent_id for event in entries if isinstance(event, AgentEvent)])

    def effect() -> EventBatch:
        results = [event_outcome(each) for each in _publish(request, entries)]
        return EventBatch(results, failed=sum(not result.ok for result in results))

    return await perform(request, effect)


async def _charge(request: ApiRequest, agent_ids: Sequence[str]) -> None:
    """Count the events against the limits of their agents; an operator may name agents that do not exist."""
    access = request.context.agent_access
    if _caller(request) is None:
        known = await request.context.run(lambda: access.agents.store.registry.known(set(agent_ids)))
        agent_ids = [agent_id for agent_id in agent_ids if agent_id in known]
    access.take(agent_ids)


class _Refused(Exception):
    """An entry that is not a valid event; later entries of the agent `agent_id` are held back."""

    def __init__(self, error: PostroadError, agent_id: str | None) -> None:
        self.error = error
        self.agent_id = agent_id


def _publish(request: ApiRequest, entries: Sequence[AgentEvent | _Refused]) -> list[Published]:
    events = [_identified(request, entry, index) for index, entry in enumerate(entries)]
    outcomes = request.agents.publish_each(events, traceparent=request.raw_header(b"traceparent"))
    return [
        outcome._replace(error=entry.error) if isinstance(entry, _Refused) else outcome
        for entry, outcome in zip(entries, outcomes, strict=True)
    ]


def _identified(request: ApiRequest, entry: AgentEvent | _Refused, index: int) -> AgentEvent:
    """Return an event that a repeat of the request publishes under the same id."""
    if isinstance(entry, _Refused):
        # An event of its agent that cannot be sent, so that later ones are held back.
        return AgentEvent(entry.agent_id or "?", "", {})
    return entry if entry.event_id is not None else replace(entry, event_id=request.repeatable_id(index))


def _entry(entry: Any, caller: str | None) -> AgentEvent | _Refused:
    named = entry.get("agentId") if isinstance(entry, dict) else None
    agent_id = caller or (named if is_agent_id(named) else None)
    try:
        return _event(msgspec.convert(entry, forms.Event), caller)
    except msgspec.ValidationError as error:
        refused = misfit(str(error))
        return _Refused(InvalidEvent(refused.message, field=refused.field), agent_id)
    except PostroadError as error:
        return _Refused(error, agent_id)


def _event(data: forms.Event, caller: str | None) -> AgentEvent:
    """Return the event of the calling agent, or of the agent that an operator names."""
    named = None if data.agentId is None else check_agent_id(data.agentId, field="agentId")
    agent_id = caller or named
    if agent_id is None:
        raise InvalidEvent("agentId: an operator names the agent", field="agentId")
    if named not in (None, agent_id):
        raise IdentityMismatch(f'agentId: the token is not that of "{named}"', field="agentId")
    return AgentEvent(agent_id, data.eventType, data.data, data.timestamp, data.eventId)


def _caller(request: ApiRequest) -> str | None:
    """Return the agent whose token it is; None for an operator."""
    assert request.user is not None
    return request.user.agent


@route("POST /topics/{topic:str}/events", "publish", EventPublished, 409, 413, status=202)
async def publish_to_topic(request: ApiRequest, topic: TopicName, data: PublishBody) -> Response[Any]:
    """Publish one event. A type that this server has loaded is checked; any other name is accepted."""
    return await perform(request, lambda: _publish_to(request.context.backend, topic, _envelope(request, data)))


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
            new_id=lambda: _event_id(request, data.event_id),
        )
    except PostroadError as error:
        if error.field != "name":
            raise
        raise InvalidInput(f"type: {error}", field="type") from error


def _event_id(request: ApiRequest, given: str | None) -> UUID:
    text = request.repeatable_id() if given is None else given
    try:
        return uuid7() if text is None else UUID(text)
    except ValueError:
        raise InvalidInput(f"event_id: {str(given)[:100]!r} is not a UUID", field="event_id") from None


def _publish_to(backend: Backend, topic: str, envelope: Envelope) -> EventPublished:
    from postroad.bus.groups import names_of
    from postroad.bus.tail import message_for

    codec = Codec(backend.registry)
    if backend.registry.find(envelope.event_type) is not None:
        # Refuse a payload that the registered class of the type does not accept.
        codec.unwrap(envelope)
    names = names_of(topic, fifo=f"{topic}.fifo" in backend.topics())
    port = backend.topic(names.topic, fifo=names.fifo)
    [result] = port.publish([message_for(envelope, codec.encode(envelope), fifo=names.fifo)])
    if result.error is not None:
        raise result.error
    return EventPublished(str(envelope.event_id))
