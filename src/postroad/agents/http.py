"""Agents over HTTP: calls to a server that may be away for a while, and an agent's queue behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad import errors
from postroad.agents.tables import nobody_sends, queue_name
from postroad.backoff import Backoff
from postroad.errors import ConfigurationError, NotSupported, OutcomeUnknown, PostroadError, RateLimited
from postroad.queues import AckResult, Delivery, OutgoingMessage, PeekedMessage, QueueStats, QueueTraits, SendResult
from postroad.telemetry import legible

if TYPE_CHECKING:
    import httpx

SETTLE_SECONDS: Final = 10.0
"""For how long one attempt to settle messages is repeated; a receiver makes three within a lease."""
_ANSWER_SECONDS: Final = 10.0
_MOST_SETTLED: Final = 100
_VISIBILITY: Final = 30.0
_BY_SLUG: Final = {getattr(errors, name).slug: getattr(errors, name) for name in errors.__all__}


class _Problem(msgspec.Struct):
    """What the server answers if it refuses something."""

    type: str = ""
    detail: str | None = None
    title: str | None = None
    remedy: str | None = None
    field: str | None = None


class _Leased(msgspec.Struct, rename="camel"):
    """What a receiver needs to know about a leased event."""

    agent_id: str
    timestamp: datetime
    message_id: str
    receipt: str
    receive_count: int


class _LeasedBatch(msgspec.Struct):
    deliveries: list[msgspec.Raw]


class _Settled(msgspec.Struct):
    ok: bool
    error: _Problem | None = None


class _SettledBatch(msgspec.Struct):
    results: list[_Settled]


class Server:
    """A server that is called with an agent's token, again and again while it cannot be reached."""

    def __init__(self, url: str, token: str) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ConfigurationError(
                "the HTTP client is not installed", field="url", remedy="Run: pip install 'postroad[client]'"
            ) from error
        try:
            place = httpx.URL(url)
        except (TypeError, httpx.InvalidURL):
            raise _bad_address() from None
        if place.scheme not in ("http", "https") or not place.host or place.query or place.fragment or place.userinfo:
            raise _bad_address()
        self._url = url
        self._unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
        self._failed = httpx.TransportError
        self._client: httpx.Client = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=_ANSWER_SECONDS
        )

    def call(
        self, method: str, path: str, body: object = None, *, repeat_for: float, wait: float = 0.0
    ) -> tuple[bytes, bool]:
        """Return the answer, and whether an earlier attempt without an answer may have taken effect.

        The call is repeated for `repeat_for` seconds while the server is away or refuses for now; `wait` are the
        seconds for which the server may wait before it answers.
        """
        until, backoff, repeated = time.monotonic() + repeat_for, Backoff(), False
        while True:
            try:
                return self._attempt(method, path, body, wait), repeated
            except (errors.TransportError, RateLimited) as error:
                repeated |= isinstance(error, OutcomeUnknown)
                pause = error.retry_after if isinstance(error, RateLimited) else backoff.next()
                if time.monotonic() + pause > until:
                    raise
            time.sleep(pause)

    def close(self) -> None:
        self._client.close()

    def _attempt(self, method: str, path: str, body: object, wait: float) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            answer = self._client.request(
                method, path, content=content, headers=headers, timeout=wait + _ANSWER_SECONDS
            )
        except self._unsent as error:
            text = f"{self._url} cannot be reached: {error}"
            raise errors.Unavailable(text, remedy="Start the server, or correct its address.") from error
        except self._failed as error:
            raise OutcomeUnknown(f"{self._url} did not answer: {type(error).__name__}: {error}") from error
        if answer.status_code >= 400:
            raise _refusal(self._url, answer)
        return answer.content


def _bad_address() -> ConfigurationError:
    # What was given is not shown: it may hold a password.
    remedy = "Write it like https://postroad.example.com, without a user, a query or a fragment."
    return ConfigurationError("url: is not an address of HTTP", field="url", remedy=remedy)


def _refusal(url: str, answer: httpx.Response) -> PostroadError:
    """Return what the server answered as the error that it is."""
    try:
        problem = msgspec.json.decode(answer.content, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem()
    text = problem.detail or problem.title or f"{url} answered {answer.status_code}"
    if answer.status_code == 429:
        seconds = answer.headers.get("Retry-After", "")
        return RateLimited(text, retry_after=float(seconds) if seconds.isdecimal() else 1.0)
    if answer.status_code >= 500 or answer.status_code == 408:
        return OutcomeUnknown(text, remedy=problem.remedy)
    return _error(problem, text)


def _error(problem: _Problem, text: str) -> PostroadError:
    kind = _BY_SLUG.get(problem.type.removeprefix("/errors/"), PostroadError)
    try:
        made = kind(text, field=problem.field, remedy=problem.remedy)
    except TypeError:
        made = PostroadError(text, field=problem.field, remedy=problem.remedy)
    return made if isinstance(made, PostroadError) else PostroadError(text)


class HttpAgentQueue:
    """An agent's queue behind a server: a `Queue` as the receiver needs it.

    `on_fatal` is called when the server will never answer again: the token is not valid, or the agent was deleted.
    """

    traits = QueueTraits(
        fifo=True,
        durable=True,
        exclusive=True,
        peeks_clean=False,
        tells_stale_acks=True,
        atomic_reject=True,
        keeps_release_error=True,
        counts_expired=False,
        auto_deletes=False,
        max_message_bytes=262_144,
        visibility=_VISIBILITY,
        # The server knows the limit, which is at most this. That there is one makes the receiver take an event that
        # failed alone, so that it does not use up the receives of those behind it.
        max_receives=1_000,
        defers_by="undo",
    )

    def __init__(self, server: Server, agent_id: str, on_fatal: Callable[[PostroadError], None]) -> None:
        self.name = queue_name(agent_id)
        self._server = server
        self._path = f"/agents/{agent_id}"
        self._on_fatal = on_fatal
        self._group: str | None = None
        self._knows_order = False

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        """Lease events; while the server is away this raises, and the receiver asks again later."""
        visibility = _VISIBILITY if visibility is None else visibility
        body = {"max_messages": min(max_messages, 10), "wait": wait, "visibility": visibility}
        try:
            self._read_order()
            answer, _ = self._server.call("POST", f"{self._path}/leases", body, repeat_for=0.0, wait=wait)
        except (errors.Unauthorized, errors.Forbidden, errors.AgentNotFound) as error:
            self._on_fatal(error)
            raise
        found = msgspec.json.decode(answer, type=_LeasedBatch).deliveries
        return [self._delivery(bytes(each)) for each in found]

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        return self._settle("acks", deliveries)

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        # A lease that could not be extended is tried again soon by its receiver.
        return self._settle("extensions", deliveries, repeat_for=0.0, seconds=seconds)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        return self._settle("releases", deliveries, after=after, error=error and legible(error))

    def undo(self, deliveries: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
        """Give back what was not handled; a server on AWS counts the receive all the same."""
        return self._settle("releases", deliveries, after=after, count=False)

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        return self._settle("rejections", deliveries, reason=reason[:500], error=error and legible(error))

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        raise nobody_sends(self.name)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        raise NotSupported(f"{self.name} cannot be peeked over HTTP")

    def stats(self) -> QueueStats:
        raise NotSupported(f"{self.name} is not counted over HTTP", remedy="Ask for GET /agents/{id}/stats.")

    def _read_order(self) -> None:
        """Read whether all events are one group, before the first receive."""
        if not self._knows_order:
            answer, _ = self._server.call("GET", self._path, repeat_for=0.0)
            document = msgspec.json.decode(answer)
            self._group = document["agentId"] if document["order"] == "total" else None
            self._knows_order = True

    def _delivery(self, body: bytes) -> Delivery:
        leased = msgspec.json.decode(body, type=_Leased)
        return Delivery(
            message_id=leased.message_id,
            body=body,
            attributes={},
            group=self._group or leased.agent_id,
            receipt=leased.receipt,
            receive_count=leased.receive_count,
            sent_at=leased.timestamp,
            first_received_at=datetime.now(UTC),
            sequence=None,
        )

    def _settle(
        self, verb: str, deliveries: Sequence[Delivery], *, repeat_for: float = SETTLE_SECONDS, **fields: Any
    ) -> list[AckResult]:
        given = {name: value for name, value in fields.items() if value is not None}
        results: list[AckResult] = []
        for start in range(0, len(deliveries), _MOST_SETTLED):
            receipts = [each.receipt for each in deliveries[start : start + _MOST_SETTLED]]
            answer, repeated = self._server.call(
                "POST", f"{self._path}/{verb}", {"receipts": receipts, **given}, repeat_for=repeat_for
            )
            settled = msgspec.json.decode(answer, type=_SettledBatch).results
            results += [_result(each, repeated=repeated) for each in settled]
        return results


def _result(settled: _Settled, *, repeated: bool) -> AckResult:
    if settled.ok:
        return AckResult(True)
    error = _error(settled.error or _Problem(), (settled.error and settled.error.detail) or "it was not settled")
    # The attempt whose answer was lost has settled it; if not, the event comes again, and is known.
    return AckResult(True) if repeated and isinstance(error, errors.StaleReceipt) else AckResult(False, error)
