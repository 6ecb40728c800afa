"""`/ui/agents`, `/ui/notifications`: agents with what waits for them, and what is known of a user's devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.params import PathParameter, QueryParameter
from litestar.response import Redirect

from postroad.errors import NotFound
from postroad.http.requests import ApiRequest, Cursor
from postroad.http.routes.agents import agent_page
from postroad.http.routes.ui import PAGE, form, shown
from postroad.notifications import configured_user
from postroad.views import (
    AgentDeadLetter,
    AgentRow,
    AgentStats,
    SubscriberRow,
    SubscriptionRow,
    agent_dead_letter,
    agent_row,
    agent_stats,
    problem,
    subscriber_row,
    subscription_row,
)

_ROWS: Final = 20
_FEW: Final = 6
_MANY: Final = 50
Id = Annotated[str, PathParameter()]
Text = Annotated[str | None, QueryParameter()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """An agent with its counters and the first of its subscriptions; the chosen one with all that is shown of it."""

    agent: AgentRow
    stats: AgentStats
    subscriptions: list[SubscriptionRow]
    subscribers: list[SubscriberRow]
    dead_letters: list[AgentDeadLetter]


@get("/ui/agents", **PAGE)
async def agents(request: ApiRequest, cursor: Cursor = None, agent: Text = None) -> Response[str]:
    """List agents with what waits for them, and show the chosen one whole."""
    page = await agent_page(request, _ROWS, cursor)
    rows = await request.context.run(lambda: [_shown(request, each) for each in page.items])
    chosen = await request.context.run(lambda: _chosen(request, agent)) if agent else None
    return shown(request, "agents", rows=rows, chosen=chosen, cursor=cursor, next_cursor=page.next_cursor)


def _shown(request: ApiRequest, agent: AgentRow) -> _Shown:
    found = request.agents.subscriptions(agent.agent_id, limit=_FEW)
    return _Shown(
        agent=agent,
        stats=agent_stats(request.agents.stats(agent.agent_id)),
        subscriptions=[subscription_row(each) for each in found.items],
        subscribers=[],
        dead_letters=[],
    )


def _chosen(request: ApiRequest, agent_id: str) -> _Shown:
    known = request.agents
    agent = known.get(agent_id)
    return _Shown(
        agent=agent_row(agent),
        stats=agent_stats(known.stats(agent_id)),
        subscriptions=[subscription_row(each) for each in agent.subscriptions],
        subscribers=[subscriber_row(each) for each in known.subscribers(agent_id, limit=_MANY).items],
        dead_letters=[agent_dead_letter(each) for each in known.dead_letters(agent_id, limit=_ROWS)],
    )


@post("/ui/agents/{listener:str}/subscriptions/{producer:str}/pause", **form("operate"))
async def pause_pair(request: ApiRequest, listener: Id, producer: Id) -> Redirect:
    """Hold the events of a producer."""
    await request.context.run(lambda: request.agents.pause(listener, producer))
    return _to(listener)


@post("/ui/agents/{listener:str}/subscriptions/{producer:str}/resume", **form("operate"))
async def resume_pair(request: ApiRequest, listener: Id, producer: Id) -> Redirect:
    """Deliver the held events of a producer."""
    await request.context.run(lambda: request.agents.resume(listener, producer))
    return _to(listener)


@post("/ui/agents/{agent:str}/redrive", **form("operate"))
async def redrive_agent(request: ApiRequest, agent: Id) -> Redirect:
    """Send the dead letters of an agent back to the end of its queue."""
    await request.context.run(lambda: request.agents.redrive(agent))
    return _to(agent)


def _to(agent_id: str) -> Redirect:
    return Redirect(f"/ui/agents?{urlencode({'agent': agent_id})}", status_code=303)


@get("/ui/notifications", **PAGE)
async def notifications(request: ApiRequest, user: Text = None) -> Response[str]:
    """Search a user: devices, waiting messages and the results of the last pushes."""
    user = (user or "").strip()
    doc, missing = None, None
    if user:
        try:
            doc = await request.context.run(partial(configured_user, request.context.backend.url, user))
        except NotFound as error:
            missing = problem(error, request_id=request.request_id)
    status = 200 if missing is None else 404
    return shown(request, "notifications", status=status, doc=doc, user=user, problem=missing)
