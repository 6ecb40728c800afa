"""`/agents`: making, showing and removing agents."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from litestar import Response, delete, get, post
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.agents.rules import now_text
from postroad.http import agent_forms as forms
from postroad.http.answers import answers
from postroad.http.guard import AGENT
from postroad.http.idempotency import Answer
from postroad.http.performing import perform
from postroad.http.requests import BODILESS, ApiRequest
from postroad.http.routes.parameters import AgentId, Cursor, Limit
from postroad.views import AgentDetail, AgentGone, AgentMade, AgentPage, AgentToken, agent_detail, agent_row, registered

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
    agents = request.context.desk.agents

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
        page = request.context.desk.agents.list(limit=limit, cursor=after)
        following = None if page.next_cursor is None else cursors.seal("agents", page.next_cursor)
        return AgentPage([agent_row(agent) for agent in page.items], following)

    return Response(await request.context.run(look))


@get(
    "/agents/{agent:str}",
    opt={"scope": "read", AGENT: "agent"},
    responses=answers(AgentDetail, 404, says="The agent."),
)
async def show_agent(request: ApiRequest, agent: AgentId) -> Response[AgentDetail]:
    """One agent with the first hundred producers it listens to."""
    found = await request.context.run(lambda: request.context.desk.agents.get(agent))
    return Response(agent_detail(found))


@delete(
    "/agents/{agent:str}",
    opt={"scope": "admin", AGENT: "agent"},
    status_code=200,
    responses=answers(AgentGone, 404, says="It is gone with what waited for it."),
)
async def delete_agent(request: ApiRequest, agent: AgentId) -> Response[AgentGone]:
    """Remove the agent with its subscriptions and its lane; its id is never given again."""
    gone = await request.context.run(lambda: request.context.desk.agents.delete(agent))
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
    agents = request.context.desk.agents

    def rotate() -> Answer:
        token = agents.rotate_token(agent, overlap=data.overlap)
        until = request.context.clock.now() + timedelta(seconds=data.overlap)
        return Answer(201, AgentToken(token, now_text(until)))

    def renew(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "token": agents.renew_token(agent)}

    response = await perform(request, rotate, revive=renew)
    request.context.streams.check(agent)
    return response
