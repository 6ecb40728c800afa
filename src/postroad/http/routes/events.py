"""`/events`: publishing under an agent's id. Who publishes is told by the token, never by the body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Response, post
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.agents import AgentEvent, Published, check_agent_id, is_agent_id
from postroad.errors import IdentityMismatch, InvalidEvent, PostroadError
from postroad.http import forms
from postroad.http.authentication import AGENT, ANY_AGENT
from postroad.http.changes import perform
from postroad.http.forms import misfit
from postroad.http.idempotency import Answer
from postroad.http.openapi import answers
from postroad.http.requests import ApiRequest
from postroad.views import EventAccepted, EventBatch, accepted, event_outcome

_EXAMPLE = {"agentId": "ann", "eventType": "order.placed", "data": {"id": 7}, "timestamp": "2025-07-01T12:00:00.000Z"}
EventBody = Annotated[forms.Event, Body(examples=[Example(value=_EXAMPLE)])]
EventsBody = Annotated[forms.Events, Body(examples=[Example(value={"events": [_EXAMPLE]})])]
_OPTIONS = {"scope": "publish", AGENT: ANY_AGENT}


@post(
    "/events",
    opt=_OPTIONS,
    status_code=202,
    responses=answers(EventAccepted, 400, 404, 409, 413, status=202, says="It is on the stream."),
)
async def publish_event(request: ApiRequest, data: EventBody) -> Response[Any]:
    """Publish one event. When this answers, it is durable."""
    event = _event(data, _caller(request))
    await _charge(request, [event.agent_id])

    def effect() -> Answer:
        [outcome] = request.context.agent_access.agents.publish_each([event], traceparent=_traceparent(request))
        return Answer(202, accepted(outcome))

    return await perform(request, effect)


@post(
    "/events/batch",
    opt=_OPTIONS,
    status_code=202,
    responses=answers(EventBatch, 400, 409, 413, status=202, says="What became of each event."),
)
async def publish_events(request: ApiRequest, data: EventsBody) -> Response[Any]:
    """Publish up to 500 events. A bad one is answered `ok: false` and holds back later ones of its agent alone."""
    caller = _caller(request)
    entries = [_entry(entry, caller) for entry in data.events]
    await _charge(request, [event.agent_id for event in entries if isinstance(event, AgentEvent)])

    def effect() -> Answer:
        results = [event_outcome(each) for each in _publish(request, entries)]
        return Answer(202, EventBatch(results, failed=sum(not result.ok for result in results)))

    return await perform(request, effect)


async def _charge(request: ApiRequest, agent_ids: Sequence[str]) -> None:
    """Count the events of agents that exist: an operator may name any, and only its own token names an agent."""
    access = request.context.agent_access
    if _caller(request) is None:
        known = await request.context.run(lambda: access.agents.store.registry.known(set(agent_ids)))
        agent_ids = [agent_id for agent_id in agent_ids if agent_id in known]
    access.take(agent_ids)


class _Refused(Exception):
    """An entry that is no event; `agent_id` is whose later entries wait for it."""

    def __init__(self, error: PostroadError, agent_id: str | None) -> None:
        self.error = error
        self.agent_id = agent_id


def _publish(request: ApiRequest, entries: Sequence[AgentEvent | _Refused]) -> list[Published]:
    # A refused entry takes part as an event of its agent that cannot be sent, so that later ones are held back.
    events = [entry if isinstance(entry, AgentEvent) else _stand_in(entry) for entry in entries]
    outcomes = request.context.agent_access.agents.publish_each(events, traceparent=_traceparent(request))
    return [
        outcome._replace(error=entry.error) if isinstance(entry, _Refused) else outcome
        for entry, outcome in zip(entries, outcomes, strict=True)
    ]


def _stand_in(refused: _Refused) -> AgentEvent:
    return AgentEvent(refused.agent_id or "?", "", {})


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
    """The event of whoever calls; an operator names the agent."""
    named = None if data.agentId is None else check_agent_id(data.agentId, field="agentId")
    agent_id = caller or named
    if agent_id is None:
        raise InvalidEvent("agentId: an operator names the agent", field="agentId")
    if named not in (None, agent_id):
        raise IdentityMismatch(f'agentId: the token is not that of "{named}"', field="agentId")
    return AgentEvent(agent_id, data.eventType, data.data, data.timestamp, data.eventId)


def _caller(request: ApiRequest) -> str | None:
    """The agent whose token it is; None for an operator."""
    assert request.user is not None
    return request.user.agent


def _traceparent(request: ApiRequest) -> str | None:
    return request.raw_header(b"traceparent")
