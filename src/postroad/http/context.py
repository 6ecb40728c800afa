"""What the routes work with, made once per server: the backend, tokens, limits, cursors and readiness."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidCursor, PostroadError
from postroad.http.access import AgentAccess, LeasedMessages, RateLimits, WorkAccess
from postroad.http.idempotency import AnswerStore, KeyLocks
from postroad.http.live import LiveOverviews
from postroad.http.metrics import RequestMetrics
from postroad.http.operations import Operations
from postroad.http.outbox import OutboxAccess
from postroad.http.overview import Overviews
from postroad.http.polls import MAX_OPEN, Polls
from postroad.http.redrives import KIND, Redrives
from postroad.http.server_sent_events import AgentStreams
from postroad.http.sessions import FailedLogins, Sessions
from postroad.http.tokens import Identities, TokenFile, kept_secret
from postroad.settings import Settings, beside
from postroad.views import DemoShown, Part, PartState, Ready
from postroad.wiring import Backend

_THREADS = 12
_BODY_SECONDS = 15.0
_FRESH_SECONDS = 1.0
_SEAL_BYTES = 16
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo that `postroad up --demo` plays."""

    show: Callable[[PartState], DemoShown]
    """Returns its scenes, which are in this state, and its failure."""
    repair: Callable[[str | None], None]
    """Repairs what fails, with an audit record of the actor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One server's backend, tokens and limits."""

    settings: Settings
    backend: Backend
    tokens: TokenFile
    identities: Identities
    sessions: Sessions
    failed_logins: FailedLogins
    cursors: Cursors
    answer_store: AnswerStore
    key_locks: KeyLocks
    parts: Parts
    polls: Polls
    streams: AgentStreams
    leased: LeasedMessages
    rates: RateLimits
    request_metrics: RequestMetrics
    readiness: Readiness
    agent_access: AgentAccess
    work: WorkAccess
    outbox: OutboxAccess
    overviews: Overviews
    live: LiveOverviews
    redrives: Redrives
    operations: Operations
    threads: ThreadPoolExecutor
    clock: Clock
    body_seconds: float
    demo: Demo | None = None
    started_at: float = field(default_factory=time.monotonic)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run work that may wait for the disk or the network on a thread, so that other requests go on."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, copy_context().run, work)

    async def stop(self) -> None:
        """Stop being ready, and answer those who wait."""
        self.readiness.stopping = True
        self.streams.stop()
        self.live.stop()
        await self.polls.stop()
        await asyncio.get_running_loop().run_in_executor(None, self.operations.stop)
        await asyncio.get_running_loop().run_in_executor(None, self.overviews.save)

    def close(self) -> None:
        """Stop the threads."""
        self.polls.close()
        self.threads.shutdown(wait=True)
        self.outbox.close()


def make_context(
    settings: Settings,
    backend: Backend,
    *,
    admin: str,
    clock: Clock = SYSTEM_CLOCK,
    body_seconds: float = _BODY_SECONDS,
    max_polls: int = MAX_OPEN,
    demo: Demo | None = None,
) -> Context:
    """Return what a server with these settings needs; secrets come from the files beside the data.

    `admin` is the secret of the admin token. A request may take `body_seconds` to send its body, and `max_polls` long
    polls and streams may be open. The caller closes the backend, and the `demo` if there is one.
    """
    tokens = TokenFile(beside(settings.url, "tokens.json"), clock=clock)
    secret = kept_secret(beside(settings.url, "secret"))
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="http")
    parts = Parts()
    identities = Identities(tokens, admin=admin, clock=clock)
    polls = Polls(max_open=max_polls)
    leased = LeasedMessages()
    work, outbox, redrives = WorkAccess(backend, settings), OutboxAccess(settings), Redrives(backend)
    access = AgentAccess(backend.agents(**settings.agents), clock)
    overviews = Overviews(
        backend, settings, work=work, agents=access.agents, outbox=outbox, parts=lambda: tuple(parts), threads=threads
    )
    return Context(
        settings=settings,
        backend=backend,
        tokens=tokens,
        identities=identities,
        sessions=Sessions(secret, clock),
        failed_logins=FailedLogins(clock),
        cursors=Cursors(secret),
        answer_store=AnswerStore(
            backend.items(), tenant=settings.tenant, clock=clock, joins_writes=backend.joins_writes
        ),
        key_locks=KeyLocks(),
        parts=parts,
        polls=polls,
        streams=AgentStreams(polls, access, identities, leased),
        leased=leased,
        rates=RateLimits(settings.rate_limit, clock),
        request_metrics=RequestMetrics(),
        readiness=Readiness(backend.check, parts, threads=threads, clock=clock),
        agent_access=access,
        work=work,
        outbox=outbox,
        overviews=overviews,
        live=LiveOverviews(overviews, polls),
        redrives=redrives,
        operations=Operations(
            backend.items(),
            tenant=settings.tenant,
            clock=clock,
            kinds={"task.retry": work.retry_tasks, KIND: redrives.work},
            alone=backend.joins_writes,
        ),
        threads=threads,
        clock=clock,
        body_seconds=body_seconds,
        demo=demo,
    )


class Parts:
    """The parts of `postroad up`, as the supervisor last described them."""

    def __init__(self) -> None:
        self._parts: tuple[Part, ...] = ()

    def describe(self, parts: tuple[Part, ...]) -> None:
        """Replace the states of the parts."""
        self._parts = parts

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def troubles(self) -> str | None:
        """Return which parts do not run; None if all do."""
        down = [
            f"{part.name} is {part.state}{'' if part.missing is msgspec.UNSET else f': {part.missing}'}"
            for part in self._parts
            if part.state != "running"
        ]
        return ", ".join(down) or None


class Readiness:
    """Checks the storage, at most once a second, and the parts; a server that stops is not ready."""

    def __init__(self, check_storage: Callable[[], None], parts: Parts, *, threads: Executor, clock: Clock) -> None:
        self._check_storage = check_storage
        self._parts = parts
        self._threads = threads
        self._clock = clock
        self._storage = "not checked yet"
        self._checked_at = float("-inf")
        self._checking = asyncio.Lock()
        self.stopping = False

    async def document(self) -> Ready:
        """Return the answer of `GET /ready`."""
        storage = await self._ask_storage()
        checks = {"storage": storage, "runners": self._parts.troubles() or "ok"}
        if self.stopping:
            checks["runners"] = "stopping"
        ready = all(check == "ok" for check in checks.values())
        return Ready("ready" if ready else "not ready", checks)

    async def _ask_storage(self) -> str:
        async with self._checking:
            if self._clock.monotonic() - self._checked_at >= _FRESH_SECONDS:
                self._storage = await asyncio.get_running_loop().run_in_executor(self._threads, self._answer)
                self._checked_at = self._clock.monotonic()
        return self._storage

    def _answer(self) -> str:
        try:
            self._check_storage()
        except PostroadError as error:
            return str(error)
        return "ok"


class Cursors:
    """Signs positions, so that a forged or foreign cursor is recognised."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"postroad cursors", "sha256")

    def seal(self, of: str, position: str) -> str:
        """Return the cursor for a position in the list `of`, which names its route and filters."""
        data = position.encode()
        return base64.urlsafe_b64encode(self._mac(of, data) + data).rstrip(b"=").decode()

    def open(self, of: str, cursor: str) -> str:
        """Return the position in this list that the cursor holds.

        Raises:
            InvalidCursor: The cursor was not made for this list.
        """
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid_cursor() from None
        seal, data = raw[:_SEAL_BYTES], raw[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._mac(of, data)):
            raise _invalid_cursor()
        return data.decode()

    def _mac(self, of: str, data: bytes) -> bytes:
        return hmac.new(self._key, of.encode() + b"\0" + data, hashlib.sha256).digest()[:_SEAL_BYTES]


def _invalid_cursor() -> InvalidCursor:
    return InvalidCursor("cursor: is not a cursor of this list", field="cursor")
