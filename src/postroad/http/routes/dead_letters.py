"""`/queues/{queue}/redrive` and `/ui/dead-letters`: what messages died of, and moving them back.

A redrive is an operation, which a restart does not end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import QueryParameter
from litestar.response import Redirect

from postroad.errors import PostroadError
from postroad.http import attention, forms, redrives
from postroad.http.idempotency import Answer, perform
from postroad.http.openapi import answers, example, route
from postroad.http.requests import ApiRequest, Cursor, QueueName, actor_of, checked
from postroad.http.routes.tasks import start_operation
from postroad.http.routes.ui import PAGE, filled, form, redirect, shown
from postroad.operations import FailureGroups, RedriveReport, failure_groups
from postroad.queues import MessageHistory, QueueOverview
from postroad.views import FailureGroupPage, OperationStarted, failure_groups_page, overview as overview_of

RedriveBody = Annotated[
    forms.Redrive,
    example({"match": {"fingerprint": "1f0c"}, "canary": 2, "rate": 50, "reason": "fixed in 1.4", "dry_run": True}),
]
# A page reads at most 200 rows, whatever the queues hold: messages, one more of each queue, tracebacks and the queues.
_MOST_READ = 110
_MOST_TRACEBACKS = 30
_MOST_QUEUES = 10
OnlyQueue = Annotated[str, QueryParameter(name="queue", description="Only this dead-letter queue.")]
OperationId = Annotated[str, QueryParameter(description="The redrive whose progress is shown.")]


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
    """A dead-letter queue that is not empty, and the causes of as many of its messages as a page examines."""

    name: str
    sources: Sequence[str]
    size: int
    groups: FailureGroupPage
    tracebacks: Mapping[str, Sequence[str]]
    """The traceback of a sample of each of the first groups that have one, by its fingerprint."""
    before: int
    """How many messages the pages before this one examined."""
    next_cursor: str | None

    @property
    def whole(self) -> bool:
        """Whether all messages were examined."""
        return self.groups.complete and not self.before


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a redrive of one group would do, and what was filled in."""

    queue: str
    fingerprint: str
    report: RedriveReport
    fields: dict[str, str]


@get("/ui/dead-letters", **PAGE)
async def show_dead_letters_page(
    request: ApiRequest, queue: OnlyQueue = "", operation: OperationId = "", cursor: Cursor = None
) -> Response[str]:
    """List dead letters by cause; of one queue page by page, oldest first."""
    return await _page(request, queue, operation=operation, cursor=cursor)


async def _page(
    request: ApiRequest,
    only: str = "",
    *,
    operation: str = "",
    cursor: str | None = None,
    dry_run: DryRun | None = None,
    error: PostroadError | None = None,
) -> Response[str]:
    context = request.context
    measured = await context.overviews.measured()
    queues = [await context.run(lambda: overview_of(context.backend, checked(only)))] if only else list(measured.dead)
    chosen, rest = queues[:_MOST_QUEUES], queues[_MOST_QUEUES:]
    after = context.cursors.open(_list_of(only), cursor) if cursor else None
    full = [each for each in chosen if attention.size(each)]
    found = await context.run(lambda: [_look(request, each, len(full), after) for each in full])
    return shown(
        request,
        "dead-letters",
        error=error,
        found=found,
        only=only,
        cursor=cursor,
        rest=len(rest),
        rest_names=[each.spec.name for each in rest[:_MOST_QUEUES]],
        operation_id=operation,
        operation=await context.run(lambda: context.operations.show(operation)) if operation else None,
        dry_run=dry_run,
    )


def _list_of(queue: str) -> str:
    return f"dead-letters/{queue}"


def _look(request: ApiRequest, queue: QueueOverview, queues: int, after: str | None) -> DeadLetters:
    """Examine the part of one of so many queues that a page has room for; `after` is where the previous page ended."""
    context, name = request.context, queue.spec.name
    before, _, position = (after or "0").partition(" ")
    found = failure_groups(context.backend, name, limit=_MOST_READ // queues, cursor=position or None)
    following = None if found.cursor is None else f"{int(before) + found.scanned} {found.cursor}"
    return DeadLetters(
        name,
        context.backend.sources(name),
        # What was examined to the end is newer than what was measured.
        found.scanned if found.complete and after is None else attention.size(queue),
        failure_groups_page(found),
        _tracebacks(context.backend.message_history(), found, _MOST_TRACEBACKS // queues),
        int(before),
        None if following is None else context.cursors.seal(_list_of(name), following),
    )


def _tracebacks(history: MessageHistory | None, found: FailureGroups, most: int) -> Mapping[str, Sequence[str]]:
    """Return the first traceback that is known of each group, looking for no more than `most`."""
    tracebacks: dict[str, Sequence[str]] = {}
    missing = (
        (group.fingerprint, sample)
        for group in (() if history is None else found.groups)
        for sample in group.sample_ids
        if group.fingerprint not in tracebacks
    )
    for fingerprint, sample in islice(missing, most):
        if history is not None and (lines := history.traceback(sample)):
            tracebacks[fingerprint] = lines
    return tracebacks


@post("/ui/dead-letters/{queue:str}/redrive", **form("operate"))
async def redrive_group(request: ApiRequest, queue: QueueName) -> Response[str] | Redirect:
    """Count what would move; with `confirm` begin to move it, and show how far it is."""
    context, given = request.context, await request.fields()
    try:
        match = forms.RedriveMatch(fingerprint=given.get("fingerprint") or None)
        fields = {name: value.strip() for name, value in given.items()}
        wanted: forms.Redrive = filled(fields, forms.Redrive, "limit", "rate", "canary", "reason", match=match)
        if "confirm" in given:
            operation = await context.run(lambda: _recorded(request, queue, wanted))
            context.operations.run(operation)
            return redirect("/ui/dead-letters", queue=queue, operation=operation)
        report = await context.run(lambda: redrives.preview(context.backend, checked(queue), wanted))
    except PostroadError as error:
        return await _page(request, queue, cursor=given.get("cursor"), error=error)
    dry_run = DryRun(queue, given.get("fingerprint", ""), report, given)
    return await _page(request, queue, cursor=given.get("cursor"), dry_run=dry_run)
