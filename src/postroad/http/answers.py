"""The forms of answers, for the API's description. The documents themselves come from `postroad.views`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar.openapi.datastructures import ResponseSpec

from postroad.http.parts import Part
from postroad.http.tokens import Scope


class Problem(msgspec.Struct, kw_only=True):
    """What went wrong, and what to do about it."""

    type: str
    title: str
    status: int
    detail: str
    remedy: str
    request_id: str | None
    field: str | msgspec.UnsetType = msgspec.UNSET
    differences: dict[str, list[Any]] | msgspec.UnsetType = msgspec.UNSET


class EntryProblem(msgspec.Struct, kw_only=True):
    """What went wrong with one entry of a batch."""

    type: str
    title: str
    detail: str
    remedy: str
    field: str | msgspec.UnsetType = msgspec.UNSET


class ErrorPage(msgspec.Struct):
    """What an error means."""

    slug: str
    title: str
    status: int
    remedy: str


class Health(msgspec.Struct):
    """The process lives."""

    status: Literal["ok"]
    version: str


class Ready(msgspec.Struct):
    """Whether the server can do its work, check by check."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]


class BackendShown(msgspec.Struct):
    """Where the data lies."""

    url: str
    kind: str


class Status(msgspec.Struct):
    """What runs."""

    version: str
    uptime_seconds: float
    backend: BackendShown
    read_only: bool
    parts: list[Part]


class QueueRow(msgspec.Struct):
    """One queue of a list."""

    name: str
    fifo: bool
    visible: int
    in_flight: int
    delayed: int
    oldest_age_seconds: float | None
    dead_letter: str | None


class QueueDetail(QueueRow):
    """A queue with its settings and its sources."""

    settings: dict[str, Any]
    sources: list[str]


class QueuePage(msgspec.Struct):
    """Queues by name."""

    items: list[QueueRow]
    next_cursor: str | None


class FailureGroupRow(msgspec.Struct):
    """Dead letters of one cause."""

    fingerprint: str
    event_type: str | None
    error: str | None
    count: int
    first_sent_at: str
    last_sent_at: str
    sample_ids: list[str]


class FailureGroupPage(msgspec.Struct):
    """Dead letters by what they died of; `complete` says whether all were looked at."""

    items: list[FailureGroupRow]
    scanned: int
    complete: bool


class PeekedRow(msgspec.Struct):
    """A message seen without touching it."""

    message_id: str
    attributes: dict[str, str]
    group: str | None
    receive_count: int
    sent_at: str
    state: Literal["visible", "in_flight", "delayed"]
    size: int
    body: str | msgspec.UnsetType = msgspec.UNSET


class PeekedPage(msgspec.Struct):
    """Messages in order."""

    items: list[PeekedRow]
    next_cursor: str | None


class Sent(msgspec.Struct):
    """What became of one message."""

    ok: bool
    message_id: str | None
    error: EntryProblem | None


class SentBatch(msgspec.Struct):
    """What became of each message, in order."""

    results: list[Sent]


class Settled(msgspec.Struct):
    """Whether one receipt still held its lease."""

    ok: bool
    error: EntryProblem | None


class SettledBatch(msgspec.Struct):
    """What became of each receipt, in order."""

    results: list[Settled]


class Leased(msgspec.Struct):
    """A leased message with the receipt that settles it."""

    message_id: str
    body: str
    attributes: dict[str, str]
    group: str | None
    receipt: str
    receive_count: int
    sent_at: str
    first_received_at: str
    sequence: int | None


class LeasedBatch(msgspec.Struct):
    """Leased messages; none when there was none in time."""

    deliveries: list[Leased]


class Purged(msgspec.Struct):
    """How many messages are gone."""

    purged: int


class TokenRow(msgspec.Struct):
    """A token without its secret."""

    name: str
    scope: Scope
    created_at: str
    expires_at: str | None


class TokenMade(TokenRow):
    """A token with its secret, which is shown this once."""

    token: str


class TokenPage(msgspec.Struct):
    """Tokens by name."""

    items: list[TokenRow]
    next_cursor: str | None


def answers(
    what: Any, *more: int, status: int = 200, says: str, media_type: str = "application/json"
) -> dict[int, ResponseSpec]:
    """The answers of a route: the good one, and a problem for each of the other statuses."""
    good = ResponseSpec(data_container=what, generate_examples=False, description=says, media_type=media_type)
    return {status: good} | {
        other: ResponseSpec(
            data_container=Problem,
            generate_examples=False,
            description=SAYS[other],
            media_type="application/problem+json",
        )
        for other in more
    }


SAYS = {
    400: "Malformed or invalid; `field` names what is at fault.",
    401: "No token, or one that opens nothing.",
    403: "The token's scope does not reach this, or the server is read-only.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    409: "It conflicts with what is there.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too much at once; `Retry-After` says when to come again.",
    500: "Nothing Postroad foresaw; the log has the request id.",
    503: "The storage refuses for now; `Retry-After` says when to come again.",
}
