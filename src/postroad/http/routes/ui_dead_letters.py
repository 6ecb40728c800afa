"""`/ui/dead-letters`: what messages died of, and the form that moves them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from litestar import Response, get, post
from litestar.params import QueryParameter

from postroad.errors import PostroadError
from postroad.http import attention, forms
from postroad.http.requests import ApiRequest, QueueName, checked
from postroad.http.routes.redrives import begin_redrive, preview_redrive
from postroad.http.routes.ui import HTML, PAGE, form, shown
from postroad.operations import RedriveReport, failure_groups
from postroad.queues import MessageHistory, QueueOverview
from postroad.views import FailureGroupPage, failure_groups_page, overview as overview_of, problem

# A page reads no more than these many messages, whatever the queues hold.
_MOST_READ = 200
_MOST_QUEUES = 10
OnlyQueue = Annotated[str, QueryParameter(name="queue", description="Only this dead-letter queue.")]
OperationId = Annotated[str, QueryParameter(description="The redrive whose progress is shown.")]
All = Annotated[int, QueryParameter(name="all", ge=0, le=1, description="1 to examine every message.")]


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
    return await page(request, queue, operation=operation, everything=everything == 1)


async def page(
    request: ApiRequest,
    only: str = "",
    *,
    operation: str = "",
    everything: bool = False,
    dry_run: DryRun | None = None,
    error: PostroadError | None = None,
) -> Response[str]:
    """Answer the page, with one queue or all."""
    context = request.context
    measured = await context.overviews.measured()
    queues = [await context.run(lambda: overview_of(context.backend, checked(only)))] if only else list(measured.dead)
    chosen, rest = queues[:_MOST_QUEUES], queues[_MOST_QUEUES:]
    limit = None if everything else max(1, _MOST_READ // max(1, len(chosen)))
    found = await context.run(lambda: [_look(request, each, limit) for each in chosen if attention.size(each)])
    return shown(
        request,
        "dead-letters",
        status=200 if error is None else error.status,
        found=found,
        only=only,
        rest=len(rest),
        rest_names=[each.spec.name for each in rest[:_MOST_QUEUES]],
        operation_id=operation,
        operation=await context.run(lambda: context.operations.show(operation)) if operation else None,
        dry_run=dry_run,
        problem=None if error is None else problem(error, request_id=request.request_id),
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
async def redrive_group(request: ApiRequest, queue: QueueName) -> Response[str]:
    """Count what would move; with `confirm` begin to move it, and show how far it is."""
    given = await request.fields()
    try:
        wanted = wanted_of(given)
        if "confirm" in given:
            operation = await begin_redrive(request, queue, wanted)
            location = f"/ui/dead-letters?{urlencode({'queue': queue, 'operation': operation})}"
            return Response("", status_code=303, headers={"Location": location}, media_type=HTML)
        report = await preview_redrive(request, queue, wanted)
    except PostroadError as error:
        return await page(request, queue, error=error)
    return await page(request, queue, dry_run=DryRun(queue, given.get("fingerprint", ""), report, given))


def wanted_of(given: dict[str, str]) -> forms.Redrive:
    """Return what a form asks for; a field that is left empty is not given."""
    fields = {name: value for name in ("limit", "rate", "canary", "reason") if (value := given.get(name, "").strip())}
    match = {"fingerprint": given["fingerprint"]} if given.get("fingerprint") else {}
    try:
        return msgspec.convert({**fields, "match": match}, forms.Redrive, strict=False)
    except msgspec.ValidationError as error:
        raise forms.misfit(str(error)) from None
