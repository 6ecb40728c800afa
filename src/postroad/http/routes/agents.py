"""`/agents` and `/notifications`: agents with what waits for them, and users with their devices; and their pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from litestar import Response, get
from litestar.params import PathParameter

from postroad import views
from postroad.agents import Deleted, Page as AgentsPage, checked_event_types, now_text
from postroad.errors import NotFound
from postroad.http import forms
from postroad.http.idempotency import perform
from postroad.http.openapi import example, route
from postroad.http.requests import AgentId, ApiRequest, Cursor, Discard, Limit, page
from postroad.http.routes.ui import PAGE, Text, changing, shown
from postroad.notifications import UserShown, configured_user

NewAgentBody = Annotated[forms.NewAgent, example({"agentId": "collector", "accept": "all"})]
SubscribingBody = Annotated[forms.Subscribing, example({"eventTypes": ["order.placed", "invoice.*"]})]
RotationBody = Annotated[forms.TokenRotation, example({"overlap": 0})]
ReplayBody = Annotated[forms.Replay, example({"since": "2025-07-01T12:00:00Z"})]
RedriveBody = Annotated[forms.AgentRedrive, example({"limit": 100})]
_ONE = "/agents/{agent:str}"
_PAIR = "/agents/{listener:str}/subscriptions/{producer:str}"
_GRANT = "/agents/{producer:str}/grants/{listener:str}"
_NEW_AGENT, _ROTATION, _REPLAY, _REDRIVE = forms.NewAgent(), forms.TokenRotation(), forms.Replay(), forms.AgentRedrive()
_SUBSCRIBING = forms.Subscribing()
# Each agent costs a few rows more, and a page reads at most 200.
_ROWS: Final = 10
_FEW: Final = 3
_MANY: Final = 20
Row = TypeVar("Row")
User = Annotated[str, PathParameter(description="The user's id.")]


@route("POST /agents", "admin", views.AgentMade, 409, status=201, bodiless=True)
async def create_agent(request: ApiRequest, data: NewAgentBody = _NEW_AGENT) -> Response[Any]:
    """Create an agent. A repeat with the same Idempotency-Key shows a new token and revokes the previous one."""
    agents = request.agents

    def make() -> views.AgentMade:
        made = agents.register(data.agentId, order=data.order, accept=data.accept, principal_arn=data.principalArn)
        return views.registered(made)

    def renew(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "token": agents.renew_token(document["agentId"])}

    return await perform(request, make, revive=renew)


@route("GET /agents", "read", views.Page[views.AgentRow])
async def list_agents(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> views.Page[views.AgentRow]:
    """List all agents, a page at a time."""
    find = partial(request.agents.list, limit=limit)
    return await page(request, "agents", cursor, lambda after: _rows(views.agent_row, find(cursor=after)))


def _rows(row: Callable[[Any], Row], found: AgentsPage[Any]) -> tuple[list[Row], str | None]:
    return [row(each) for each in found.items], found.next_cursor


@route(f"GET {_ONE}", "read", views.AgentDetail, 404, agent="agent")
async def show_agent(request: ApiRequest, agent: AgentId) -> views.AgentDetail:
    """Show an agent and its first hundred subscriptions."""
    return views.agent_detail(await request.context.run(lambda: request.agents.get(agent)))


@route(f"DELETE {_ONE}", "admin", Deleted, 404, agent="agent")
async def delete_agent(request: ApiRequest, agent: AgentId) -> Deleted:
    """Delete the agent with its subscriptions and its queue; its id is never used again."""
    gone = await request.context.run(lambda: request.agents.delete(agent))
    request.context.streams.check(agent)
    return gone


@route(f"POST {_ONE}/token", "admin", views.AgentToken, 404, 409, status=201, agent="agent", bodiless=True)
async def rotate_agent_token(request: ApiRequest, agent: AgentId, data: RotationBody = _ROTATION) -> Response[Any]:
    """Give the agent a new token; the previous one stays valid for `overlap` seconds, ten minutes by default."""
    agents = request.agents

    def rotate() -> views.AgentToken:
        token = agents.rotate_token(agent, overlap=data.overlap)
        return views.AgentToken(token, now_text(request.context.clock.now() + timedelta(seconds=data.overlap)))

    def renew(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "token": agents.renew_token(agent)}

    response = await perform(request, rotate, revive=renew)
    request.context.streams.check(agent)
    return response


@route(f"PUT {_PAIR}", "admin", None, 404, 403, status=204, agent="listener", bodiless=True)
async def subscribe_agent(
    request: ApiRequest, listener: AgentId, producer: AgentId, data: SubscribingBody = _SUBSCRIBING
) -> None:
    """Subscribe the listener to the producer. An agent needs the producer's grant unless the producer accepts all."""
    event_types = checked_event_types(data.eventTypes, field="eventTypes")

    def subscribe() -> None:
        if request.user is not None and request.user.agent is not None:
            request.agents.check_consent(listener, producer)
        request.agents.subscribe(listener, producer, event_types=event_types)

    await request.context.run(subscribe)


@route(f"DELETE {_PAIR}", "admin", None, 404, status=204, agent="listener")
async def unsubscribe_agent(
    request: ApiRequest, listener: AgentId, producer: AgentId, discard: Discard = False
) -> None:
    """End the subscription; `discard` deletes the waiting messages too."""
    await request.context.run(lambda: request.agents.unsubscribe(listener, producer, discard=discard))


@route(f"GET {_ONE}/subscriptions", "read", views.Page[views.SubscriptionRow], 404, agent="agent")
async def list_subscriptions(
    request: ApiRequest, agent: AgentId, limit: Limit = 20, cursor: Cursor = None
) -> views.Page[views.SubscriptionRow]:
    """List the agent's subscriptions, a page at a time."""
    find, of = partial(request.agents.subscriptions, agent, limit=limit), f"agents/{agent}/subscriptions"
    return await page(request, of, cursor, lambda after: _rows(views.subscription_row, find(cursor=after)))


@route(f"GET {_ONE}/subscribers", "read", views.Page[views.SubscriberRow], 404, agent="agent")
async def list_subscribers(
    request: ApiRequest, agent: AgentId, limit: Limit = 20, cursor: Cursor = None
) -> views.Page[views.SubscriberRow]:
    """List the agent's subscribers, a page at a time."""
    find, of = partial(request.agents.subscribers, agent, limit=limit), f"agents/{agent}/subscribers"
    return await page(request, of, cursor, lambda after: _rows(views.subscriber_row, find(cursor=after)))


@route(f"PUT {_GRANT}", "admin", None, 404, status=204, agent="producer", bodiless=True)
async def grant_listener(request: ApiRequest, producer: AgentId, listener: AgentId) -> None:
    """Allow the listener to subscribe itself to the producer."""
    await request.no_body()
    await request.context.run(lambda: request.agents.grant(producer, listener))


@route(f"DELETE {_GRANT}", "admin", None, 404, status=204, agent="producer")
async def revoke_listener(request: ApiRequest, producer: AgentId, listener: AgentId) -> None:
    """Revoke the grant, and end the subscription."""
    await request.context.run(lambda: request.agents.revoke(producer, listener))


@route(f"POST {_PAIR}/pause", "operate", None, 404, 409, status=204, agent="listener", bodiless=True)
async def pause_subscription(request: ApiRequest, listener: AgentId, producer: AgentId) -> Response[None]:
    """Hold the producer's events; they are kept."""
    return await perform(request, lambda: request.agents.pause(listener, producer))


@route(f"POST {_PAIR}/resume", "operate", None, 404, 409, status=204, agent="listener", bodiless=True)
async def resume_subscription(request: ApiRequest, listener: AgentId, producer: AgentId) -> Response[None]:
    """Deliver the held events, before any newer ones."""
    return await perform(request, lambda: request.agents.resume(listener, producer))


@route(f"POST {_PAIR}/replay", "operate", views.Replayed, 404, 409, status=202, agent="listener", bodiless=True)
async def replay_subscription(
    request: ApiRequest, listener: AgentId, producer: AgentId, data: ReplayBody = _REPLAY
) -> Response[Any]:
    """Deliver the producer's events since `since` again, before any newer ones."""
    agents = request.agents
    return await perform(request, lambda: views.Replayed(agents.replay(listener, producer, since=data.since)))


@route(f"GET {_ONE}/stats", "read", views.AgentStats, 404, agent="agent")
async def show_agent_stats(request: ApiRequest, agent: AgentId) -> views.AgentStats:
    """Show how many messages wait for the agent."""
    return views.agent_stats(await request.context.run(lambda: request.agents.stats(agent)))


@route(f"GET {_ONE}/dead-letters", "read", views.Page[views.AgentDeadLetter], 404, agent="agent")
async def list_agent_dead_letters(
    request: ApiRequest, agent: AgentId, limit: Limit = 20, cursor: Cursor = None
) -> views.Page[views.AgentDeadLetter]:
    """List the events that failed too often, oldest first."""

    def find(after: str | None) -> tuple[list[views.AgentDeadLetter], str | None]:
        dead = request.agents.dead_letters(agent, limit=limit + 1, after=after)
        following = str(dead[limit - 1].sequence) if len(dead) > limit else None
        return [views.agent_dead_letter(each) for each in dead[:limit]], following

    return await page(request, f"agents/{agent}/dead-letters", cursor, find)


@route(
    f"POST {_ONE}/dead-letters/redrive", "operate", views.Redriven, 404, 409, status=202, agent="agent", bodiless=True
)
async def redrive_agent_dead_letters(
    request: ApiRequest, agent: AgentId, data: RedriveBody = _REDRIVE
) -> Response[Any]:
    """Send dead letters back to the end of the agent's queue."""
    agents = request.agents
    return await perform(request, lambda: views.Redriven(agents.redrive(agent, limit=data.limit)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """An agent with its counters and the first of its subscriptions; the chosen one with all that is shown of it."""

    agent: views.AgentRow
    stats: views.AgentStats
    subscriptions: list[views.SubscriptionRow]
    subscribers: Sequence[views.SubscriberRow] = ()
    dead_letters: Sequence[views.AgentDeadLetter] = ()


@get("/ui/agents", **PAGE)
async def agents_page(request: ApiRequest, cursor: Cursor = None, agent: Text = None) -> Response[str]:
    """List agents with what waits for them, and show the chosen one whole."""
    found = await list_agents.fn(request, _ROWS, cursor)
    rows = await request.context.run(lambda: [_shown(request, each) for each in found.items])
    chosen = await request.context.run(lambda: _chosen(request, agent)) if agent else None
    return shown(request, "agents", rows=rows, chosen=chosen, cursor=cursor, next_cursor=found.next_cursor)


def _shown(request: ApiRequest, agent: views.AgentRow) -> _Shown:
    few = request.agents.subscriptions(agent.agent_id, limit=_FEW)
    return _Shown(
        agent=agent,
        stats=views.agent_stats(request.agents.stats(agent.agent_id)),
        subscriptions=[views.subscription_row(each) for each in few.items],
    )


def _chosen(request: ApiRequest, agent_id: str) -> _Shown:
    known = request.agents
    agent = known.get(agent_id, limit=_MANY)
    return _Shown(
        agent=views.agent_row(agent),
        stats=views.agent_stats(known.stats(agent_id)),
        subscriptions=[views.subscription_row(each) for each in agent.subscriptions],
        subscribers=[views.subscriber_row(each) for each in known.subscribers(agent_id, limit=_MANY).items],
        dead_letters=[views.agent_dead_letter(each) for each in known.dead_letters(agent_id, limit=_ROWS)],
    )


pause_pair = changing(f"/ui{_PAIR}/pause", pause_subscription, "/ui/agents?agent={listener}")
resume_pair = changing(f"/ui{_PAIR}/resume", resume_subscription, "/ui/agents?agent={listener}")
redrive_agent = changing(f"/ui{_ONE}/redrive", redrive_agent_dead_letters, "/ui/agents?agent={agent}")


@route("GET /notifications/users/{user:str}", "read", UserShown, 404)
async def show_user_notifications(request: ApiRequest, user: User) -> UserShown:
    """Show a user's devices, the messages that wait, and the results of the last pushes, without content and tokens."""
    return await request.context.run(partial(configured_user, request.context.backend.url, user))


@get("/ui/notifications", **PAGE)
async def notifications(request: ApiRequest, user: Text = None) -> Response[str]:
    """Search a user: devices, waiting messages and the results of the last pushes."""
    user = (user or "").strip()
    doc, missing = None, None
    if user:
        try:
            doc = await show_user_notifications.fn(request, user)
        except NotFound as error:
            missing = error
    return shown(request, "notifications", error=missing, doc=doc, user=user)
