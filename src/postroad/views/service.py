"""The running service, its tokens and its errors as the CLI prints them and the HTTP API answers them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

from postroad.errors import InternalError, PostroadError, QueueExists

PROBLEM_MEDIA_TYPE = "application/problem+json"
PartState = Literal["running", "starting", "failed"]
Scope = Literal["read", "publish", "operate", "admin"]
T = TypeVar("T")


class Listed(msgspec.Struct, Generic[T]):
    """A list that never has a second page."""

    items: list[T]


class Page(Listed[T], Generic[T]):
    """One page of a list; `next_cursor` is null on the last one."""

    next_cursor: str | None


class Health(msgspec.Struct):
    """The process is alive."""

    status: Literal["ok"]
    version: str


class Ready(msgspec.Struct):
    """Whether the server can do its work, check by check."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]


class Part(msgspec.Struct, frozen=True):
    """One part of a running `postroad up`."""

    name: str
    process: str
    pid: int | None
    state: PartState
    restarts: int = 0
    missing: str | msgspec.UnsetType = msgspec.UNSET
    """What it waits for, while something that it needs is unavailable."""


class BackendShown(msgspec.Struct):
    """Where the data is stored."""

    url: str
    kind: str


class Status(msgspec.Struct):
    """The running service."""

    version: str
    uptime_seconds: float
    backend: BackendShown
    read_only: bool
    parts: list[Part]


class TokenRow(msgspec.Struct):
    """A token without its secret."""

    name: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None


class TokenMade(TokenRow):
    """A token with its secret, which is shown only once."""

    token: str


class EntryProblem(msgspec.Struct, kw_only=True):
    """The error of one entry of a batch."""

    type: str
    title: str
    detail: str
    remedy: str
    field: str | msgspec.UnsetType = msgspec.UNSET


class Problem(msgspec.Struct, kw_only=True):
    """An error, and what to do about it: the one form in which every error leaves Postroad."""

    type: str
    title: str
    status: int
    detail: str
    remedy: str
    request_id: str | None
    field: str | msgspec.UnsetType = msgspec.UNSET
    differences: dict[str, list[Any]] | msgspec.UnsetType = msgspec.UNSET


class ErrorPage(msgspec.Struct):
    """The meaning of an error."""

    slug: str
    title: str
    status: int
    remedy: str


def problem(error: Exception, *, request_id: str | None = None) -> Problem:
    """Return an error as `application/problem+json`. An unexpected error shows only the request id."""
    known = error if isinstance(error, PostroadError) else InternalError("The cause is in the log.")
    document = Problem(
        type=f"/errors/{known.slug}",
        title=title(type(known)),
        status=known.status,
        detail=str(known),
        remedy=known.remedy if known.nearest is None else f'Did you mean "{known.nearest}"? {known.remedy}',
        request_id=request_id,
        field=msgspec.UNSET if known.field is None else known.field,
    )
    if isinstance(known, QueueExists):
        document.differences = {name: list(pair) for name, pair in known.differences.items()}
    return document


def entry_problem(error: Exception) -> EntryProblem:
    """Return the error of one entry of a batch: a problem without status and request id."""
    whole = problem(error)
    return EntryProblem(type=whole.type, title=whole.title, detail=whole.detail, remedy=whole.remedy, field=whole.field)


def error_page(kind: type[PostroadError]) -> ErrorPage:
    """Return the meaning of a class of errors."""
    return ErrorPage(kind.slug, title(kind), kind.status, kind.remedy)


def title(kind: type[PostroadError]) -> str:
    """Return the first line of the class's docstring."""
    return (kind.__doc__ or "").strip().split("\n", 1)[0]


OperationState = Literal["running", "done", "stopped", "failed"]


class OperationStarted(msgspec.Struct):
    """The id of an operation, which goes on by itself."""

    operation_id: str


class OperationShown(msgspec.Struct):
    """How far an operation is: what it has found and changed, and its report once it has ended."""

    state: OperationState
    moved: int
    matched: int
    error: str | None
    report: dict[str, Any] | None


class OutboxRedriven(msgspec.Struct):
    """The ids of the events that are published again, or would be."""

    redriven: list[str]
    dry_run: bool


class OutboxSkipped(msgspec.Struct):
    """The id of the event that was given up."""

    skipped: str


class EventPublished(msgspec.Struct):
    """The id of the event that was published."""

    event_id: str


FailureState = Literal["healthy", "failing", "repaired", "redriven"]


class SceneShown(msgspec.Struct):
    """One scene: what it has published, what of it was handled, and how many attempts failed."""

    name: str
    state: PartState
    published: int
    handled: int
    failed: int


class DemoFailure(msgspec.Struct):
    """The failure that the demo shows, and how far it is repaired."""

    state: FailureState
    queue: str
    dead_letters: int


class DemoShown(msgspec.Struct):
    """The scenes of the demo, and its failure."""

    scenes: list[SceneShown]
    failure: DemoFailure


class DemoPlayed(msgspec.Struct):
    """What came of a demo that was played to its end."""

    scenes: int
    published: int
    handled: int
    dead_lettered: int
    redriven: int
    lost: int
    duplicated_effects: int
    ledger_sum: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing was lost or made twice, and everything that failed was redriven."""
        return not self.lost and not self.duplicated_effects and 0 < self.dead_lettered == self.redriven
