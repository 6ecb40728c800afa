"""`/agents/{agent}/leases` and what ends them, the stream, the stats and the dead letters of one agent."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.http import forms
from postroad.http.authentication import AGENT, token_check
from postroad.http.changes import perform, perform_waiting
from postroad.http.idempotency import Answer
from postroad.http.openapi import answers
from postroad.http.pages import page
from postroad.http.polls import CallerGone
from postroad.http.requests import BODILESS, AgentId, ApiRequest, Cursor, Endless, Limit, Visibility, gone
from postroad.http.routes.leases import Settle, held, rejecting
from postroad.http.streams import LaneStream
from postroad.queues import Delivery, Queue
from postroad.views import (
    AgentDeadLetterPage,
    AgentDeliveries,
    AgentStats,
    Redriven,
    SettledBatch,
    agent_dead_letter,
    agent_delivery,
    agent_stats,
    settled,
)

_RECEIPT = "a receipt of a delivery"
LeaseBody = Annotated[forms.AgentLease, Body(examples=[Example(value={"wait": 20, "max_messages": 10})])]
AcksBody = Annotated[forms.AgentAcks, Body(examples=[Example(value={"receipts": [_RECEIPT]})])]
ExtensionsBody = Annotated[
    forms.AgentExtensions, Body(examples=[Example(value={"receipts": [_RECEIPT], "seconds": 60})])
]
ReleasesBody = Annotated[forms.AgentReleases, Body(examples=[Example(value={"receipts": [_RECEIPT], "after": 5})])]
RejectionsBody = Annotated[
    forms.AgentRejections, Body(examples=[Example(value={"receipts": [_RECEIPT], "reason": "the order is unknown"})])
]
RedriveBody = Annotated[forms.AgentRedrive, Body(examples=[Example(value={"limit": 100})])]
_SETTLED = answers(SettledBatch, 400, 404, 409, says="What became of each receipt.")
_CONSUME = {"scope": "publish", AGENT: "agent"}
_AT_ONCE = forms.AgentLease()
_EVERYTHING = forms.AgentRedrive()


@post(
    "/agents/{agent:str}/leases",
    opt={**_CONSUME, BODILESS: True},
    status_code=200,
    responses=answers(AgentDeliveries, 400, 404, 409, says="The leased events; none when there was none in time."),
)
async def lease_events(request: ApiRequest, agent: AgentId, data: LeaseBody = _AT_ONCE) -> Response[Any]:
    """Lease events, waiting up to `wait` seconds for the first. Hanging up gives back what was leased."""
    try:
        return await perform_waiting(request, lambda: _lease(request, agent, data))
    except CallerGone:
        # Nobody is there to read it.
        return Response(AgentDeliveries([]))


@post("/agents/{agent:str}/acks", opt=_CONSUME, status_code=200, responses=_SETTLED)
async def ack_events(request: ApiRequest, agent: AgentId, data: AcksBody) -> Response[Any]:
    """Settle the events: they are done."""
    return await _settle(request, agent, data.receipts, lambda queue, leased: queue.ack(leased))


@post("/agents/{agent:str}/extensions", opt=_CONSUME, status_code=200, responses=_SETTLED)
async def extend_events(request: ApiRequest, agent: AgentId, data: ExtensionsBody) -> Response[Any]:
    """Keep the leases for `seconds` from now."""
    return await _settle(
        request,
        agent,
        data.receipts,
        lambda queue, leased: queue.extend(leased, seconds=data.seconds),
        ends=False,
    )


@post("/agents/{agent:str}/releases", opt=_CONSUME, status_code=200, responses=_SETTLED)
async def release_events(request: ApiRequest, agent: AgentId, data: ReleasesBody) -> Response[Any]:
    """Give the events back, to be received again after `after` seconds."""
    return await _settle(
        request,
        agent,
        data.receipts,
        lambda queue, leased: queue.release(leased, after=data.after, error=data.error),
    )


@post("/agents/{agent:str}/rejections", opt=_CONSUME, status_code=200, responses=_SETTLED)
async def reject_events(request: ApiRequest, agent: AgentId, data: RejectionsBody) -> Response[Any]:
    """Send the events to the dead letters now, with the reason; no further receive is spent on them."""
    return await _settle(request, agent, data.receipts, rejecting(request.context, data.reason, data.error))


@get(
    "/agents/{agent:str}/stream",
    opt=_CONSUME,
    responses=answers(str, 400, 404, says="Events as they come.", media_type="text/event-stream"),
)
async def stream_events(request: ApiRequest, agent: AgentId, visibility: Visibility = 30.0) -> Response[Any]:
    """Events as Server-Sent Events; at most ten are unacked at a time, and all come back when the connection ends."""
    context = request.context
    queue = await context.run(lambda: context.agent_access.agents.queue(agent))
    if request.is_head:
        return Response(b"", media_type="text/event-stream")
    check = token_check(request)
    return Endless(LaneStream(context.streams, queue, agent_id=agent, visibility=visibility, check=check))


@get(
    "/agents/{agent:str}/stats",
    opt={"scope": "read", AGENT: "agent"},
    responses=answers(AgentStats, 404, says="The lane."),
)
async def show_lane(request: ApiRequest, agent: AgentId) -> Response[AgentStats]:
    """How much waits for the agent."""
    return Response(agent_stats(await request.context.run(lambda: request.context.agent_access.agents.stats(agent))))


@get(
    "/agents/{agent:str}/dead-letters",
    opt={"scope": "read", AGENT: "agent"},
    responses=answers(AgentDeadLetterPage, 400, 404, says="Dead letters, oldest first."),
)
async def list_agent_dead_letters(
    request: ApiRequest, agent: AgentId, limit: Limit = 20, cursor: Cursor = None
) -> Response[AgentDeadLetterPage]:
    """What failed too often, oldest first."""
    of = f"agents/{agent}/dead-letters"
    after = None if cursor is None else request.context.cursors.open(of, cursor)

    def look() -> AgentDeadLetterPage:
        dead = request.context.agent_access.agents.dead_letters(agent, limit=limit + 1, after=after)
        return page(
            request,
            AgentDeadLetterPage,
            of,
            dead,
            limit,
            position=lambda each: str(each.sequence),
            row=agent_dead_letter,
        )

    return Response(await request.context.run(look))


@post(
    "/agents/{agent:str}/dead-letters/redrive",
    opt={"scope": "operate", AGENT: "agent", BODILESS: True},
    status_code=202,
    responses=answers(Redriven, 400, 404, 409, status=202, says="How many are back."),
)
async def redrive_agent_dead_letters(
    request: ApiRequest, agent: AgentId, data: RedriveBody = _EVERYTHING
) -> Response[Any]:
    """Put dead letters behind what waits."""
    agents = request.context.agent_access.agents
    return await perform(request, lambda: Answer(202, Redriven(agents.redrive(agent, limit=data.limit))))


async def _lease(request: ApiRequest, agent: str, data: forms.AgentLease) -> Answer:
    context = request.context
    queue = await context.run(lambda: context.agent_access.agents.queue(agent))
    leased = await context.run(lambda: _receive(queue, agent, data))
    if not leased and data.wait:
        context.agent_access.begin_waiting(agent)
        try:
            leased = await context.polls.receive(
                queue,
                max_messages=data.max_messages,
                wait=data.wait,
                visibility=data.visibility,
                gone=lambda: gone(request),
            )
        finally:
            context.agent_access.end_waiting(agent)
    context.leased.remember(queue, leased)
    return Answer(200, AgentDeliveries([agent_delivery(one) for one in leased]))


def _receive(queue: Queue, agent: str, data: forms.AgentLease) -> list[Delivery]:
    return queue.receive(max_messages=data.max_messages, visibility=data.visibility)


async def _settle(
    request: ApiRequest,
    agent: str,
    receipts: list[str],
    settle: Settle,
    *,
    ends: bool = True,
) -> Response[Any]:
    access = request.context.agent_access

    def effect() -> Answer:
        results = settle(access.agents.queue(agent), [held(receipt) for receipt in receipts])
        return Answer(200, SettledBatch([settled(result) for result in results]))

    response = await perform(request, effect)
    if ends:
        request.context.streams.settled(agent, receipts)
    return response
