"""What the routes work with, put together once per server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.http.access import (
    AgentAccess,
    LeasedMessages,
    RateLimits,
    WorkAccess,
)
from postroad.http.idempotency import Memory, Turns
from postroad.http.pages import Cursors
from postroad.http.polls import MAX_OPEN, Polls
from postroad.http.readiness import Parts, Readiness
from postroad.http.streams import LaneStreams
from postroad.http.tokens import Identities, TokenFile, kept_secret
from postroad.settings import Settings, beside
from postroad.wiring import Backend

_THREADS = 12


_BODY_SECONDS = 15.0


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One server's backend, tokens and limits."""

    settings: Settings
    backend: Backend
    tokens: TokenFile
    identities: Identities
    cursors: Cursors
    memory: Memory
    turns: Turns
    parts: Parts
    polls: Polls
    streams: LaneStreams
    leased: LeasedMessages
    rates: RateLimits
    readiness: Readiness
    agent_access: AgentAccess
    work: WorkAccess
    threads: ThreadPoolExecutor
    clock: Clock
    body_seconds: float
    started_at: float = field(default_factory=time.monotonic)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do work that may wait for the disk or the network without holding up other requests."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    async def stop(self) -> None:
        """Become not ready and let waiting callers go."""
        self.readiness.stopping = True
        self.streams.stop()
        await self.polls.stop()

    def close(self) -> None:
        """Give the threads back."""
        self.polls.close()
        self.threads.shutdown(wait=True)


def make_context(
    settings: Settings,
    backend: Backend,
    *,
    admin: str,
    clock: Clock = SYSTEM_CLOCK,
    body_seconds: float = _BODY_SECONDS,
    max_polls: int = MAX_OPEN,
) -> Context:
    """Put together what a server of these settings needs; secrets come from the files beside the data."""
    tokens = TokenFile(beside(settings.url, "tokens.json"), clock=clock)
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="http")
    parts = Parts()
    identities = Identities(tokens, admin=admin, clock=clock)
    polls = Polls(max_open=max_polls)
    leased = LeasedMessages()
    access = AgentAccess(backend.agents(), clock)
    return Context(
        settings=settings,
        backend=backend,
        tokens=tokens,
        identities=identities,
        cursors=Cursors(kept_secret(beside(settings.url, "secret"))),
        memory=Memory(backend.items(), tenant=settings.tenant, clock=clock, joins_writes=backend.joins_writes),
        turns=Turns(),
        parts=parts,
        polls=polls,
        streams=LaneStreams(polls, access, identities, leased),
        leased=leased,
        rates=RateLimits(settings.rate_limit, clock),
        readiness=Readiness(backend.check, parts, threads=threads, clock=clock),
        agent_access=access,
        work=WorkAccess(backend, settings),
        threads=threads,
        clock=clock,
        body_seconds=body_seconds,
    )
