"""Turns: requests with one Idempotency-Key go one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.errors import Unavailable
from postroad.http.idempotency import WAIT_SECONDS


class Turns:
    """One at a time for each key; the others wait in line for as long as they may."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Hold the key's turn, or raise `Unavailable` when it did not come in time."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            await self._acquire(lock)
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)

    async def _acquire(self, lock: asyncio.Lock) -> None:
        try:
            await asyncio.wait_for(lock.acquire(), WAIT_SECONDS)
        except TimeoutError:
            raise Unavailable("the same request is still running") from None
