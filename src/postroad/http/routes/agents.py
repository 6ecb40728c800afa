"""`/agents`: agents, their subscriptions, and who may subscribe."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypeVar

from litestar import Response, delete, get, post, put
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.agents import Page, Subscription, now_text
from postroad.http import forms
from postroad.http.authentication import AGENT
from postroad.http.changes import perform
from postroad.http.idempotency import Answer
from postroad.http.openapi import answers
from postroad.http.requests import BODILESS, AgentId, ApiRequest, Cursor, Discard, Limit
from postroad.views import (
    AgentDetail,
    AgentGone,
    AgentMade,
    AgentPage,
    AgentToken,
    Replayed,
    SubscriberPage,
    SubscriptionPage,
    agent_detail,
    agent_row,
    registered,
    subscriber_row,
    subscription_row,
)

NewAgentBody = Annotated[forms.NewAgent, Body(examples=[Example(value={"agentId": "collector", "accept": "all"})])]
RotationBody = Annotated[forms.TokenRotation, Body(examples=[Example(value={"overlap": 0})])]
_ANY = forms.NewAgent()
_IN_TEN_MINUTES = forms.TokenRotation()


@post(
    "/agents",
    opt={"scope": "admin", BODILESS: True},
    status_code=201,
    responses=answers(AgentMade, 400, 409, status=201, says="The agent with its token, which is shown this once."),
)
async def create_agent(request: ApiRequest, data: NewAgentBody = _ANY) -> Response[Any]:
    """Make an agent. A repeat under the same Idempotency-Key shows a fresh token, and the former one is void."""
    agents = request.context.agent_access.agents

    def make() -> Answer:
        made = agents.register(data.agentId, order=data.order, accept=data.accept, principal_arn=data.principalArn)
        return Answer(201, registered(made))

    def renew(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "token": agents.renew_token(document["agentId"])}

    return await perform(request, make, revive=renew)


@get("/agents", opt={"scope": "read"}, responses=answers(AgentPage, 400, says="Agents."))
async def list_agents(request: ApiRequest, limit: Limit = 20, cursor: Cursor = None) -> Response[AgentPage]:
    """All agents, a page at a time."""
    cursors = request.context.cursors
    after = None if cursor is None else cursors.open("agents", cursor)

    def look() -> AgentPage:
        page = request.context.agent_access.agents.list(limit=limit, cursor=after)
        following = None if page.next_cursor is None else cursors.seal("agents", page.next_cursor)
        return AgentPage([agent_row(agent) for agent in page.items], following)

    return Response(await request.context.run(look))


@get(
    "/agents/{agent:str}",
    opt={"scope": "read", AGENT: "agent"},
    responses=answers(AgentDetail, 404, says="The agent."),
)
async def show_agent(request: ApiRequest, agent: AgentId) -> Response[AgentDetail]:
    """Show an agent and its first hundred subscriptions."""
    found = await request.context.run(lambda: request.context.agent_access.agents.get(agent))
    return Response(agent_detail(found))


@delete(
    "/agents/{agent:str}",
    opt={"scope": "admin", AGENT: "agent"},
    status_code=200,
    responses=answers(AgentGone, 404, says="It is gone with what waited for it."),
)
async def delete_agent(request: ApiRequest, agent: AgentId) -> Response[AgentGone]:
    """Remove the agent with its subscriptions and its lane; its id is never given again."""
    gone = await request.context.run(lambda: request.context.agent_access.agents.delete(agent))
    request.context.streams.check(agent)
    return Response(AgentGone(gone.discarded, gone.subscriptions, gone.subscribers))


@post(
    "/agents/{agent:str}/token",
    opt={"scope": "admin", AGENT: "agent", BODILESS: True},
    status_code=201,
    responses=answers(AgentToken, 400, 404, 409, status=201, says="The token, which is shown this once."),
)
async def rotate_agent_token(
    request: ApiRequest, agent: AgentId, data: RotationBody = _IN_TEN_MINUTES
) -> Response[Any]:
    """Give the agent another token; the former one opens for `overlap` seconds more, ten minutes by default."""
    agents = request.context.agent_access.agents

    def rotate() -> Answer:
        token = agents.rotate_token(agent, overlap=data.overlap)
        until = request.context.clock.now() + timedelta(seconds=data.overlap)
        return Answer(201, AgentToken(token, now_text(until)))

    def renew(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "token": agents.renew_token(agent)}

    response = await perform(request, rotate, revive=renew)
    request.context.streams.check(agent)
    return response


ReplayBody = Annotated[forms.Replay, Body(examples=[Example(value={"since": "2025-07-01T12:00:00Z"})])]
_PAIR = "/agents/{listener:str}/subscriptions/{producer:str}"
_GRANT = "/agents/{producer:str}/grants/{listener:str}"
_OF_LISTENER = {"scope": "admin", AGENT: "listener", BODILESS: True}
_OF_PRODUCER = {"scope": "admin", AGENT: "producer", BODILESS: True}
_OPERATED = {"scope": "operate", AGENT: "listener", BODILESS: True}
_ALL = forms.Replay()
Shown = TypeVar("Shown")


@put(
    _PAIR,
    opt=_OF_LISTENER,
    status_code=204,
    responses=answers(None, 400, 404, 403, status=204, says="It subscription_row, from now on or already."),
)
async def subscribe_agent(request: ApiRequest, listener: AgentId, producer: AgentId) -> None:
    """Let the listener hear the producer. An agent needs the producer's grant unless that is open to all."""
    await request.no_body()
    agents = request.context.agent_access.agents

    def subscribe() -> None:
        if request.user is not None and request.user.agent is not None:
            agents.check_consent(listener, producer)
        agents.subscribe(listener, producer)

    await request.context.run(subscribe)


@delete(_PAIR, opt=_OF_LISTENER, responses=answers(None, 404, status=204, says="It does not listen."))
async def unsubscribe_agent(
    request: ApiRequest, listener: AgentId, producer: AgentId, discard: Discard = False
) -> None:
    """Stop listening; with `discard` what waits goes too."""
    agents = request.context.agent_access.agents
    await request.context.run(lambda: agents.unsubscribe(listener, producer, discard=discard))


@get(
    "/agents/{agent:str}/subscriptions",
    opt={"scope": "read", AGENT: "agent"},
    responses=answers(SubscriptionPage, 400, 404, says="The agent's subscriptions."),
)
async def list_subscriptions(
    request: ApiRequest, agent: AgentId, limit: Limit = 20, cursor: Cursor = None
) -> Response[SubscriptionPage]:
    """List the agent's subscriptions, a page at a time."""
    find = request.context.agent_access.agents.subscriptions
    return await _page(
        request,
        f"agents/{agent}/subscriptions",
        cursor,
        _listens_page,
        lambda after: find(agent, limit=limit, cursor=after),
    )


@get(
    "/agents/{agent:str}/subscribers",
    opt={"scope": "read", AGENT: "agent"},
    responses=answers(SubscriberPage, 400, 404, says="The agent's subscribers."),
)
async def list_subscribers(
    request: ApiRequest, agent: AgentId, limit: Limit = 20, cursor: Cursor = None
) -> Response[SubscriberPage]:
    """List the agent's subscribers, a page at a time."""
    find = request.context.agent_access.agents.subscribers
    return await _page(
        request,
        f"agents/{agent}/subscribers",
        cursor,
        _heard_page,
        lambda after: find(agent, limit=limit, cursor=after),
    )


@put(_GRANT, opt=_OF_PRODUCER, status_code=204, responses=answers(None, 400, 404, status=204, says="It may listen."))
async def grant_listener(request: ApiRequest, producer: AgentId, listener: AgentId) -> None:
    """Let the listener subscribe to the producer by itself."""
    await request.no_body()
    await request.context.run(lambda: request.context.agent_access.agents.grant(producer, listener))


@delete(_GRANT, opt=_OF_PRODUCER, responses=answers(None, 404, status=204, says="It may not listen, and does not."))
async def revoke_listener(request: ApiRequest, producer: AgentId, listener: AgentId) -> None:
    """Take the grant back, and end a running subscription."""
    await request.context.run(lambda: request.context.agent_access.agents.revoke(producer, listener))


@post(
    f"{_PAIR}/pause",
    opt=_OPERATED,
    status_code=204,
    responses=answers(None, 400, 404, 409, status=204, says="Its events are withheld."),
)
async def pause_subscription(request: ApiRequest, listener: AgentId, producer: AgentId) -> Response[None]:
    """Withhold the producer's events; they are kept."""
    await request.no_body()
    return await _done(request, lambda: request.context.agent_access.agents.pause(listener, producer))


@post(
    f"{_PAIR}/resume",
    opt=_OPERATED,
    status_code=204,
    responses=answers(None, 400, 404, 409, status=204, says="What was withheld is delivered."),
)
async def resume_subscription(request: ApiRequest, listener: AgentId, producer: AgentId) -> Response[None]:
    """Deliver what was withheld, before anything newer."""
    await request.no_body()
    return await _done(request, lambda: request.context.agent_access.agents.resume(listener, producer))


@post(
    f"{_PAIR}/replay",
    opt=_OPERATED,
    status_code=202,
    responses=answers(Replayed, 400, 404, 409, status=202, says="How many events are delivered again."),
)
async def replay_subscription(
    request: ApiRequest, listener: AgentId, producer: AgentId, data: ReplayBody = _ALL
) -> Response[Any]:
    """Deliver the producer's events again, from `since` on, before anything newer."""
    agents = request.context.agent_access.agents
    return await perform(request, lambda: Answer(202, Replayed(agents.replay(listener, producer, since=data.since))))


async def _done(request: ApiRequest, act: Callable[[], None]) -> Response[None]:
    def effect() -> Answer:
        act()
        return Answer(204, None)

    return await perform(request, effect)


def _listens_page(page: Page[Subscription], following: str | None) -> SubscriptionPage:
    return SubscriptionPage([subscription_row(each) for each in page.items], following)


def _heard_page(page: Page[Subscription], following: str | None) -> SubscriberPage:
    return SubscriberPage([subscriber_row(each) for each in page.items], following)


async def _page(
    request: ApiRequest,
    of: str,
    cursor: str | None,
    show: Callable[[Page[Subscription], str | None], Shown],
    find: Callable[[str | None], Page[Subscription]],
) -> Response[Shown]:
    cursors = request.context.cursors
    after = None if cursor is None else cursors.open(of, cursor)

    def look() -> Shown:
        page = find(after)
        return show(page, None if page.next_cursor is None else cursors.seal(of, page.next_cursor))

    return Response(await request.context.run(look))
