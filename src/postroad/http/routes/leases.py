"""Leases of queues and agents over HTTP: receiving, acknowledging, extending, releasing, rejecting and streaming."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Annotated, Any

from litestar import Response

from postroad.http import forms
from postroad.http.idempotency import perform, perform_waiting
from postroad.http.openapi import example, route
from postroad.http.polls import CallerGone, give_back, gone
from postroad.http.requests import (
    AgentId,
    ApiRequest,
    QueueName,
    StreamResponse,
    Visibility,
    checked,
    token_check,
)
from postroad.http.server_sent_events import AgentStream
from postroad.queues import AckResult, Delivery, Queue
from postroad.views import AgentDeliveries, LeasedBatch, SettledBatch, agent_delivery, leased, open_queue, settled

_RECEIPTS = {"receipts": ["a receipt of a delivery"]}
LeaseBody = Annotated[forms.Lease, example({"max_messages": 10, "wait": 20, "visibility": 30})]
AgentLeaseBody = Annotated[forms.AgentLease, example({"wait": 20, "max_messages": 10})]
AcksBody = Annotated[forms.Acks, example(_RECEIPTS)]
ExtensionsBody = Annotated[forms.Extensions, example({**_RECEIPTS, "seconds": 60})]
AgentExtensionsBody = Annotated[forms.AgentExtensions, example({**_RECEIPTS, "seconds": 60})]
ReleasesBody = Annotated[forms.Releases, example({**_RECEIPTS, "after": 5})]
RejectionsBody = Annotated[forms.Rejections, example({**_RECEIPTS, "reason": "the order is unknown"})]
Settle = Callable[[Queue, Sequence[Delivery]], list[AckResult]]
_AGENT_LEASE = forms.AgentLease()
_NEVER = datetime.fromtimestamp(0, UTC)


@route("POST /queues/{queue:str}/leases", "publish", LeasedBatch, 404, 409)
async def lease_messages(request: ApiRequest, queue: QueueName, data: LeaseBody) -> Response[Any]:
    """Lease messages, waiting up to `wait` seconds for the first. Closing the connection releases them."""

    async def lease() -> LeasedBatch:
        found = await _lease(request, lambda: open_queue(request.context.backend, checked(queue)), data)
        return LeasedBatch([leased(one) for one in found])

    return await _unless_gone(request, lease, LeasedBatch([]))


@route("POST /agents/{agent:str}/leases", "publish", AgentDeliveries, 404, 409, agent="agent", bodiless=True)
async def lease_events(request: ApiRequest, agent: AgentId, data: AgentLeaseBody = _AGENT_LEASE) -> Response[Any]:
    """Lease events, waiting up to `wait` seconds for the first. Closing the connection releases them."""

    async def lease() -> AgentDeliveries:
        found = await _lease(request, lambda: request.agents.queue(agent), data, agent)
        return AgentDeliveries([agent_delivery(one) for one in found])

    return await _unless_gone(request, lease, AgentDeliveries([]))


@route("POST /queues/{queue:str}/acks", "publish", SettledBatch, 404, 409)
async def ack_messages(request: ApiRequest, queue: QueueName, data: AcksBody) -> Response[Any]:
    """Delete the messages: they are done."""
    return await _settle_messages(request, queue, data.receipts, lambda queue, held: queue.ack(held))


@route("POST /agents/{agent:str}/acks", "publish", SettledBatch, 404, 409, agent="agent")
async def ack_events(request: ApiRequest, agent: AgentId, data: AcksBody) -> Response[Any]:
    """Delete the events: they are done."""
    return await _settle_events(request, agent, data.receipts, lambda queue, held: queue.ack(held))


@route("POST /queues/{queue:str}/extensions", "publish", SettledBatch, 404, 409)
async def extend_leases(request: ApiRequest, queue: QueueName, data: ExtensionsBody) -> Response[Any]:
    """Keep the leases for `seconds` from now."""
    return await _settle_messages(request, queue, data.receipts, _extend(data.seconds))


@route("POST /agents/{agent:str}/extensions", "publish", SettledBatch, 404, 409, agent="agent")
async def extend_events(request: ApiRequest, agent: AgentId, data: AgentExtensionsBody) -> Response[Any]:
    """Keep the leases for `seconds` from now."""
    return await _settle_events(request, agent, data.receipts, _extend(data.seconds), ends=False)


@route("POST /queues/{queue:str}/releases", "publish", SettledBatch, 404, 409)
async def release_messages(request: ApiRequest, queue: QueueName, data: ReleasesBody) -> Response[Any]:
    """Release the messages, to be received again after `after` seconds."""
    return await _settle_messages(request, queue, data.receipts, _release(data))


@route("POST /agents/{agent:str}/releases", "publish", SettledBatch, 404, 409, agent="agent")
async def release_events(request: ApiRequest, agent: AgentId, data: ReleasesBody) -> Response[Any]:
    """Release the events, to be received again after `after` seconds."""
    return await _settle_events(request, agent, data.receipts, _release(data))


@route("POST /queues/{queue:str}/rejections", "publish", SettledBatch, 404, 409)
async def reject_messages(request: ApiRequest, queue: QueueName, data: RejectionsBody) -> Response[Any]:
    """Send the messages to the dead letters now, with the reason, without further receives."""
    return await _settle_messages(request, queue, data.receipts, _reject(request, data))


@route("POST /agents/{agent:str}/rejections", "publish", SettledBatch, 404, 409, agent="agent")
async def reject_events(request: ApiRequest, agent: AgentId, data: RejectionsBody) -> Response[Any]:
    """Send the events to the dead letters now, with the reason, without further receives."""
    return await _settle_events(request, agent, data.receipts, _reject(request, data))


@route(
    "GET /agents/{agent:str}/stream",
    "publish",
    str,
    404,
    agent="agent",
    says="Events as they arrive.",
    media_type="text/event-stream",
)
async def stream_events(request: ApiRequest, agent: AgentId, visibility: Visibility = None) -> Response[Any]:
    """Stream events as Server-Sent Events, at most ten unacked at a time; they are released when the stream ends."""
    queue = await request.context.run(lambda: request.agents.queue(agent))
    if request.is_head:
        return Response(b"", media_type="text/event-stream")
    streams, check = request.context.streams, token_check(request)
    # A stream extends what it holds three times in this time.
    seconds = max(1.0, request.context.settings.agents_visibility) if visibility is None else visibility
    stream = AgentStream(streams=streams, queue=queue, agent_id=agent, visibility=seconds, check=check)
    return StreamResponse(stream)


async def _unless_gone(request: ApiRequest, lease: Callable[[], Awaitable[Any]], nothing: Any) -> Response[Any]:
    try:
        return await perform_waiting(request, lease)
    except CallerGone:
        # Nobody reads this answer.
        return Response(nothing)


async def _lease(
    request: ApiRequest, find: Callable[[], Queue], data: forms.Lease | forms.AgentLease, agent: str | None = None
) -> list[Delivery]:
    """Receive at once if there is something, and else wait for it; polls of an agent are counted."""
    context = request.context
    queue = await context.run(find)
    found = await context.run(lambda: queue.receive(max_messages=data.max_messages, visibility=data.visibility))
    if not found and data.wait:
        with ExitStack() as waiting:
            if agent is not None:
                context.agent_access.begin_waiting(agent)
                waiting.callback(context.agent_access.end_waiting, agent)
            found = await context.polls.receive(
                queue,
                max_messages=data.max_messages,
                wait=data.wait,
                visibility=data.visibility,
                gone=lambda: gone(request.receive),
            )
    found = await context.polls.unless_gone(queue, found, lambda: gone(request.receive))
    context.leased.remember(queue, found)
    return found


def _extend(seconds: float) -> Settle:
    return lambda queue, held: queue.extend(held, seconds=seconds)


def _release(data: forms.Releases) -> Settle:
    if data.count:
        return lambda queue, held: queue.release(held, after=data.after, error=data.error)
    return lambda queue, held: give_back(queue, held, after=data.after)


def _reject(request: ApiRequest, data: forms.Rejections) -> Settle:
    leased = request.context.leased
    return lambda queue, held: leased.reject(queue, held, reason=data.reason, error=data.error)


async def _settle_messages(request: ApiRequest, name: str, receipts: list[str], settle: Settle) -> Response[Any]:
    return await _settle(request, lambda: open_queue(request.context.backend, checked(name)), receipts, settle)


async def _settle_events(
    request: ApiRequest, agent: str, receipts: list[str], settle: Settle, *, ends: bool = True
) -> Response[Any]:
    response = await _settle(request, lambda: request.agents.queue(agent), receipts, settle)
    if ends:
        request.context.streams.settled(agent, receipts)
    return response


async def _settle(request: ApiRequest, find: Callable[[], Queue], receipts: list[str], settle: Settle) -> Response[Any]:
    def effect() -> SettledBatch:
        # Settling reads nothing of a delivery but its receipt.
        held = [Delivery("", b"", {}, None, receipt, 1, _NEVER, _NEVER, None) for receipt in receipts]
        return SettledBatch([settled(result) for result in settle(find(), held)])

    return await perform(request, effect)
