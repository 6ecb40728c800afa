"""Whether this server can do its work: local checks only, asked at most once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from postroad.clock import Clock
from postroad.errors import PostroadError
from postroad.http.parts import Parts
from postroad.views import Ready

_FRESH_SECONDS = 1.0


class Readiness:
    """Checks the storage and the parts; a server that stops is not ready."""

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
        """The answer of `GET /ready`."""
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
