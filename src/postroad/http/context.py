"""What the routes work with, made once per server: the backend, tokens, limits, cursors and readiness."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import InvalidCursor, PostroadError
from postroad.http import redrives
from postroad.http.access import AgentAccess, LeasedMessages, OpenQueues, OutboxAccess, RateLimits, WorkAccess
from postroad.http.idempotency import AnswerStore, KeyLocks
from postroad.http.live import LiveOverviews
from postroad.http.metrics import RequestMetrics
from postroad.http.operations import Operations
from postroad.http.overview import Overviews
from postroad.http.polls import MAX_OPEN, Polls
from postroad.http.server_sent_events import AgentStreams
from postroad.http.sessions import FailedLogins, Sessions
from postroad.http.threads import Threads
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


class Context:
    """One server's backend, tokens and limits. Secrets come from the files beside the data.

    Args:
        settings: Where the data is, and the limits.
        backend: The backend, which the caller closes.
        admin: The secret of the admin token.
        clock: The time.
        body_seconds: How long a request may take to send its body.
        max_polls: How many long polls and streams may be open.
        demo: The demo, if one plays; the caller closes it.
    """

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        *,
        admin: str,
        clock: Clock = SYSTEM_CLOCK,
        body_seconds: float = _BODY_SECONDS,
        max_polls: int = MAX_OPEN,
        demo: Demo | None = None,
    ) -> None:
        secret = kept_secret(beside(settings.url, "secret"))
        self.settings = settings
        self.backend = backend
        self.clock = clock
        self.body_seconds = body_seconds
        self.demo = demo
        self.started_at = time.monotonic()
        self.threads = Threads(_THREADS, name="http")
        self.tokens = TokenFile(beside(settings.url, "tokens.json"), clock=clock)
        self.identities = Identities(self.tokens, admin=admin, clock=clock)
        self.sessions = Sessions(secret, clock)
        self.failed_logins = FailedLogins(clock)
        self.cursors = Cursors(secret)
        self.answer_store = AnswerStore(
            backend.items(), tenant=settings.tenant, clock=clock, joins_writes=backend.joins_writes
        )
        self.key_locks = KeyLocks()
        self.parts: tuple[Part, ...] = ()
        """The parts of `postroad up`, as the supervisor last described them."""
        self.readiness = Readiness(backend.check, lambda: self.parts, threads=self.threads, clock=clock)
        self.rates = RateLimits(settings.rate_limit, clock)
        self.request_metrics = RequestMetrics()
        self.polls = Polls(max_open=max_polls)
        self.queues = OpenQueues(backend, clock)
        self.leased = LeasedMessages()
        self.agent_access = AgentAccess(backend.agents(**settings.agents), clock)
        self.streams = AgentStreams(self.polls, self.agent_access, self.identities, self.leased)
        self.work = WorkAccess(backend, settings)
        self.outbox = OutboxAccess(settings)
        self.overviews = Overviews(
            backend,
            settings,
            work=self.work,
            agents=self.agent_access.agents,
            outbox=self.outbox,
            parts=lambda: self.parts,
            threads=self.threads,
        )
        self.live = LiveOverviews(self.overviews, self.polls)
        self.operations = Operations(
            backend.items(),
            tenant=settings.tenant,
            clock=clock,
            kinds={"task.retry": self.work.retry_tasks, redrives.KIND: partial(redrives.work, backend)},
            alone=backend.joins_writes,
        )

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run work that may wait for the disk or the network on a thread, so that other requests go on."""
        return await self.threads.run(work)

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
        self.threads.shutdown()
        self.outbox.close()


class Readiness:
    """Checks the storage, at most once a second, and the parts; a server that stops is not ready."""

    def __init__(
        self,
        check_storage: Callable[[], None],
        parts: Callable[[], tuple[Part, ...]],
        *,
        threads: Threads,
        clock: Clock,
    ) -> None:
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
        down = [
            f"{part.name} is {part.state}{'' if part.missing is msgspec.UNSET else f': {part.missing}'}"
            for part in self._parts()
            if part.state != "running"
        ]
        checks = {"storage": storage, "runners": ", ".join(down) or "ok"}
        if self.stopping:
            checks["runners"] = "stopping"
        ready = all(check == "ok" for check in checks.values())
        return Ready("ready" if ready else "not ready", checks)

    async def _ask_storage(self) -> str:
        async with self._checking:
            if self._clock.monotonic() - self._checked_at >= _FRESH_SECONDS:
                self._storage = await self._threads.run(self._answer)
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
