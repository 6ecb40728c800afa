"""`/queues/{queue}/leases` and what ends them: consuming from any language."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from litestar import Response, post
from litestar.openapi.spec import Example
from litestar.params import Body

from postroad.http import forms
from postroad.http.changes import perform, perform_waiting
from postroad.http.context import Context
from postroad.http.idempotency import Answer
from postroad.http.openapi import answers
from postroad.http.polls import CallerGone
from postroad.http.requests import ApiRequest, QueueName, checked, gone
from postroad.queues import AckResult, Delivery, Queue
from postroad.views import LeasedBatch, SettledBatch, leased, open_queue, settled

LeaseBody = Annotated[forms.Lease, Body(examples=[Example(value={"max_messages": 10, "wait": 20, "visibility": 30})])]
AcksBody = Annotated[forms.Acks, Body(examples=[Example(value={"receipts": ["a receipt of a delivery"]})])]
ExtensionsBody = Annotated[
    forms.Extensions, Body(examples=[Example(value={"receipts": ["a receipt of a delivery"], "seconds": 60})])
]
ReleasesBody = Annotated[
    forms.Releases, Body(examples=[Example(value={"receipts": ["a receipt of a delivery"], "after": 5})])
]
RejectionsBody = Annotated[
    forms.Rejections,
    Body(examples=[Example(value={"receipts": ["a receipt of a delivery"], "reason": "the order is unknown"})]),
]
_SETTLED = answers(SettledBatch, 400, 404, 409, says="What became of each receipt.")
Settle = Callable[[Queue, Sequence[Delivery]], list[AckResult]]
_NEVER = datetime.fromtimestamp(0, UTC)


@post(
    "/queues/{queue:str}/leases",
    opt={"scope": "publish"},
    status_code=200,
    responses=answers(LeasedBatch, 400, 404, 409, says="The leased messages; none when there was none in time."),
)
async def lease_messages(request: ApiRequest, queue: QueueName, data: LeaseBody) -> Response[Any]:
    """Lease messages, waiting up to `wait` seconds for the first. Hanging up gives back what was leased."""
    try:
        return await perform_waiting(request, lambda: _lease(request, checked(queue), data))
    except CallerGone:
        # Nobody is there to read it.
        return Response(LeasedBatch([]))


@post("/queues/{queue:str}/acks", opt={"scope": "publish"}, status_code=200, responses=_SETTLED)
async def ack_messages(request: ApiRequest, queue: QueueName, data: AcksBody) -> Response[Any]:
    """Forget the messages: they are done."""
    return await _settle(request, queue, data.receipts, lambda open_, held: open_.ack(held))


@post("/queues/{queue:str}/extensions", opt={"scope": "publish"}, status_code=200, responses=_SETTLED)
async def extend_leases(request: ApiRequest, queue: QueueName, data: ExtensionsBody) -> Response[Any]:
    """Keep the leases for `seconds` from now."""
    return await _settle(request, queue, data.receipts, lambda open_, held: open_.extend(held, seconds=data.seconds))


@post("/queues/{queue:str}/releases", opt={"scope": "publish"}, status_code=200, responses=_SETTLED)
async def release_messages(request: ApiRequest, queue: QueueName, data: ReleasesBody) -> Response[Any]:
    """Give the messages back, to be received again after `after` seconds."""
    return await _settle(request, queue, data.receipts, _release(data.after, data.error))


@post("/queues/{queue:str}/rejections", opt={"scope": "publish"}, status_code=200, responses=_SETTLED)
async def reject_messages(request: ApiRequest, queue: QueueName, data: RejectionsBody) -> Response[Any]:
    """Send the messages to the dead letters now, with the reason; no further receive is spent on them."""
    return await _settle(request, queue, data.receipts, rejecting(request.context, data.reason, data.error))


def _release(after: float, error: str | None) -> Settle:
    return lambda queue, held: queue.release(held, after=after, error=error)


def rejecting(context: Context, reason: str, error: str | None) -> Settle:
    """What rejects deliveries of which only the receipts are known."""
    return lambda queue, held: context.leased.reject(queue, held, reason=reason, error=error)


async def _lease(request: ApiRequest, name: str, data: forms.Lease) -> Answer:
    context = request.context
    queue = await context.run(lambda: open_queue(context.backend, name))
    received = await context.run(lambda: queue.receive(max_messages=data.max_messages, visibility=data.visibility))
    if not received and data.wait:
        received = await context.polls.receive(
            queue,
            max_messages=data.max_messages,
            wait=data.wait,
            visibility=data.visibility,
            gone=lambda: gone(request),
        )
    context.leased.remember(queue, received)
    return Answer(200, LeasedBatch([leased(one) for one in received]))


async def _settle(request: ApiRequest, name: str, receipts: list[str], settle: Settle) -> Response[Any]:
    def effect() -> Answer:
        results = settle(open_queue(request.context.backend, checked(name)), [held(receipt) for receipt in receipts])
        return Answer(200, SettledBatch([settled(result) for result in results]))

    return await perform(request, effect)


def held(receipt: str) -> Delivery:
    """A stand-in for the delivery: the receipt is all that settling looks at."""
    return Delivery(
        message_id="",
        body=b"",
        attributes={},
        group=None,
        receipt=receipt,
        receive_count=1,
        sent_at=_NEVER,
        first_received_at=_NEVER,
        sequence=None,
    )
