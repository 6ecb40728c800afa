"""`/queues/{queue}/redrive` and `/ui/dead-letters`: what messages died of, and moving them back.

A redrive is an operation, which a restart does not end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import QueryParameter
from litestar.response import Redirect

from postroad.errors import PostroadError
from postroad.http import attention, forms, redrives
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import answers, example, route
from postroad.http.requests import ApiRequest, QueueName, actor_of, checked
from postroad.http.routes.tasks import start_operation
from postroad.http.routes.ui import PAGE, filled, form, redirect, shown
from postroad.operations import RedriveReport, failure_groups
from postroad.queues import MessageHistory, QueueOverview
from postroad.views import FailureGroupPage, OperationStarted, failure_groups_page, overview as overview_of

RedriveBody = Annotated[
    forms.Redrive,
    example({"match": {"fingerprint": "1f0c"}, "canary": 2, "rate": 50, "reason": "fixed in 1.4", "dry_run": True}),
]
# A page reads no more than these many messages, whatever the queues hold.
_MOST_READ = 200
_MOST_QUEUES = 10
OnlyQueue = Annotated[str, QueryParameter(name="queue", description="Only this dead-letter queue.")]
OperationId = Annotated[str, QueryParameter(description="The redrive whose progress is shown.")]
All = Annotated[int, QueryParameter(name="all", ge=0, le=1, description="1 to examine every message.")]


@route(
    "POST /queues/{queue:str}/redrive",
    "operate",
    OperationStarted,
    *(404, 409),
    status=202,
    also=answers(RedriveReport, says="What would move, with `dry_run`."),
)
async def redrive_queue(request: ApiRequest, queue: QueueName, data: RedriveBody) -> Response[Any]:
    """Move dead letters back; the operation goes on by itself, also after a restart."""
    if data.dry_run:
        backend = request.context.backend
        return await perform(request, lambda: Answer(200, redrives.preview(backend, checked(queue), data)))
    return await start_operation(request, lambda: _recorded(request, queue, data))


def _recorded(request: ApiRequest, queue: str, data: forms.Redrive) -> str:
    """Record a redrive as an operation, and return its id."""
    context = request.context
    params = redrives.check(context.backend, checked(queue), data)
    return context.operations.record(redrives.KIND, params, actor=actor_of(request))


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A dead-letter queue that is not empty."""

    name: str
    sources: Sequence[str]
    size: int
    groups: FailureGroupPage
    tracebacks: Mapping[str, Sequence[str]]
    """The traceback of the newest sample of each group that has one, by its fingerprint."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a redrive of one group would do, and what was filled in."""

    queue: str
    fingerprint: str
    report: RedriveReport
    fields: dict[str, str]


@get("/ui/dead-letters", **PAGE)
async def show_dead_letters_page(
    request: ApiRequest, queue: OnlyQueue = "", operation: OperationId = "", everything: All = 0
) -> Response[str]:
    """List dead letters by cause."""
    return await _page(request, queue, operation=operation, everything=everything == 1)


async def _page(
    request: ApiRequest,
    only: str = "",
    *,
    operation: str = "",
    everything: bool = False,
    dry_run: DryRun | None = None,
    error: PostroadError | None = None,
) -> Response[str]:
    context = request.context
    measured = await context.overviews.measured()
    queues = [await context.run(lambda: overview_of(context.backend, checked(only)))] if only else list(measured.dead)
    chosen, rest = queues[:_MOST_QUEUES], queues[_MOST_QUEUES:]
    limit = None if everything else max(1, _MOST_READ // max(1, len(chosen)))
    found = await context.run(lambda: [_look(request, each, limit) for each in chosen if attention.size(each)])
    return shown(
        request,
        "dead-letters",
        error=error,
        found=found,
        only=only,
        rest=len(rest),
        rest_names=[each.spec.name for each in rest[:_MOST_QUEUES]],
        operation_id=operation,
        operation=await context.run(lambda: context.operations.show(operation)) if operation else None,
        dry_run=dry_run,
    )


def _look(request: ApiRequest, found: QueueOverview, limit: int | None) -> DeadLetters:
    backend, name = request.context.backend, found.spec.name
    groups = failure_groups_page(failure_groups(backend, name, limit=limit))
    tracebacks = {group.fingerprint: _traceback(backend.message_history(), group.sample_ids) for group in groups.items}
    # What was examined to the end is newer than what was measured.
    size = groups.scanned if groups.complete else attention.size(found)
    return DeadLetters(name, backend.sources(name), size, groups, tracebacks)


def _traceback(history: MessageHistory | None, sample_ids: Sequence[str]) -> Sequence[str]:
    """Return the first traceback that is known of these messages."""
    found = ([] if history is None else history.traceback(each) for each in sample_ids)
    return next(filter(None, found), ())


@post("/ui/dead-letters/{queue:str}/redrive", **form("operate"))
async def redrive_group(request: ApiRequest, queue: QueueName) -> Response[str] | Redirect:
    """Count what would move; with `confirm` begin to move it, and show how far it is."""
    context, given = request.context, await request.fields()
    try:
        wanted = _wanted(given)
        if "confirm" in given:
            operation = await context.run(lambda: _recorded(request, queue, wanted))
            context.operations.run(operation)
            return redirect("/ui/dead-letters", queue=queue, operation=operation)
        report = await context.run(lambda: redrives.preview(context.backend, checked(queue), wanted))
    except PostroadError as error:
        return await _page(request, queue, error=error)
    return await _page(request, queue, dry_run=DryRun(queue, given.get("fingerprint", ""), report, given))


def _wanted(given: Mapping[str, str]) -> forms.Redrive:
    """Return what the form of a group asks for."""
    match = forms.RedriveMatch(fingerprint=given.get("fingerprint") or None)
    fields = {name: value.strip() for name, value in given.items()}
    wanted: forms.Redrive = filled(fields, forms.Redrive, "limit", "rate", "canary", "reason", match=match)
    return wanted
