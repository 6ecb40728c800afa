"""Whether this server can do its work, asked at most once a second, and the parts of `postroad up`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import msgspec

from postroad.clock import Clock
from postroad.errors import PostroadError
from postroad.views import Part, Ready


class Parts:
    """All parts as the supervisor last described them."""

    def __init__(self) -> None:
        self._parts: tuple[Part, ...] = ()

    def describe(self, parts: tuple[Part, ...]) -> None:
        """Take the supervisor's word for it."""
        self._parts = parts

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def troubles(self) -> str | None:
        """Which parts do not run; None when all do."""
        down = [_trouble(part) for part in self._parts if part.state != "running"]
        return ", ".join(down) or None


def _trouble(part: Part) -> str:
    why = "" if part.missing is msgspec.UNSET else f": {part.missing}"
    return f"{part.name} is {part.state}{why}"


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
