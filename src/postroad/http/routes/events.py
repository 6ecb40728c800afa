"""`/events`: publishing as an agent. The token says which agent publishes; only an operator names another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Response

from postroad.agents import AgentEvent, Published, check_agent_id, is_agent_id
from postroad.errors import IdentityMismatch, InvalidEvent, PostroadError
from postroad.http import forms
from postroad.http.forms import misfit
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import example, route
from postroad.http.requests import ANY_AGENT, ApiRequest
from postroad.views import EventAccepted, EventBatch, accepted, event_outcome

_EXAMPLE = {"agentId": "ann", "eventType": "order.placed", "data": {"id": 7}, "timestamp": "2025-07-01T12:00:00.000Z"}
EventBody = Annotated[forms.Event, example(_EXAMPLE)]
EventsBody = Annotated[forms.Events, example({"events": [_EXAMPLE]})]


@route("POST /events", "publish", EventAccepted, 404, 409, 413, status=202, agent=ANY_AGENT)
async def publish_event(request: ApiRequest, data: EventBody) -> Response[Any]:
    """Publish one event. It is durable when the answer arrives."""
    event = _event(data, _caller(request))
    await _charge(request, [event.agent_id])

    def effect() -> Answer:
        [outcome] = request.agents.publish_each([event], traceparent=_traceparent(request))
        return Answer(202, accepted(outcome))

    return await perform(request, effect)


@route("POST /events/batch", "publish", EventBatch, 409, 413, status=202, agent=ANY_AGENT)
async def publish_events(request: ApiRequest, data: EventsBody) -> Response[Any]:
    """Publish up to 500 events. An invalid one is answered `ok: false` and holds back later ones of its agent only."""
    caller = _caller(request)
    entries = [_entry(entry, caller) for entry in data.events]
    await _charge(request, [event.agent_id for event in entries if isinstance(event, AgentEvent)])

    def effect() -> Answer:
        results = [event_outcome(each) for each in _publish(request, entries)]
        return Answer(202, EventBatch(results, failed=sum(not result.ok for result in results)))

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
    # A refused entry becomes an event of its agent that cannot be sent, so that later ones are held back.
    events = [e if isinstance(e, AgentEvent) else AgentEvent(e.agent_id or "?", "", {}) for e in entries]
    outcomes = request.agents.publish_each(events, traceparent=_traceparent(request))
    return [
        outcome._replace(error=entry.error) if isinstance(entry, _Refused) else outcome
        for entry, outcome in zip(entries, outcomes, strict=True)
    ]


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


def _traceparent(request: ApiRequest) -> str | None:
    return request.raw_header(b"traceparent")
