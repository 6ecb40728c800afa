"""Idempotency keys: the same request again gets the first answer again, and the effect happens once."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from postroad.clock import Clock
from postroad.errors import IdempotencyKeyReused, InvalidInput, PostroadError, Unavailable
from postroad.items import ABSENT, Item, Items

KEEP = timedelta(hours=24)
WAIT_SECONDS = 10.0
_KEY = re.compile(r"[ -~]{1,128}")
_PAGE = 100


class Answer(msgspec.Struct, frozen=True):
    """What a route answers, before it becomes bytes."""

    status: int
    document: Any


class Asked(msgspec.Struct, frozen=True):
    """One request that carries a key: where its answer is kept, and the body that it must repeat."""

    item_key: str
    body_sha256: str


class _Record(msgspec.Struct, frozen=True):
    state: Literal["running", "done"]
    owner: str
    at: datetime
    body_sha256: str
    answer: Answer | None = None


class Memory:
    """The answers of the last 24 hours, kept where the data is, so that they outlive this process."""

    def __init__(self, items: Items, *, tenant: str, clock: Clock, joins_writes: bool) -> None:
        self._items = items
        self._prefix = f"{tenant}/http-answers/"
        self._clock = clock
        self._owner = secrets.token_hex(8)
        self.joins_writes = joins_writes

    def asked(self, key: str, *, route: str, identity: str, body: bytes) -> Asked:
        """Where the answer to this request is kept."""
        if _KEY.fullmatch(key) is None:
            raise InvalidInput(
                "Idempotency-Key: is not 1 to 128 printable ASCII characters",
                field="Idempotency-Key",
                remedy="Send a key such as a UUID, or none.",
            )
        place = hashlib.sha256(f"{identity}\0{route}\0{key}".encode()).hexdigest()
        return Asked(self._prefix + place, hashlib.sha256(body).hexdigest())

    def recall(self, asked: Asked) -> Answer | None:
        """The first answer, when there is one."""
        _, record = self._look(asked)
        return None if record is None else record.answer

    def claim(self, asked: Asked) -> Answer | None:
        """Write down that the request runs; the answer instead when it already ran."""
        item, record = self._look(asked)
        if record is not None and record.answer is not None:
            return record.answer
        if record is not None and record.owner != self._owner and self._age(record) < timedelta(seconds=WAIT_SECONDS):
            raise _busy()
        self._write(asked, "running", None, item)
        return None

    def keep(self, asked: Asked, answer: Answer) -> None:
        """Write down the answer, in the same commit as the effect where the store can do that."""
        item, _ = self._look(asked)
        self._write(asked, "done", answer, item)

    def forget(self, asked: Asked) -> None:
        """Let the request run anew when it comes again."""
        self._items.delete(asked.item_key)

    def prune(self) -> int:
        """Forget answers older than 24 hours; how many."""
        pruned, cursor = 0, None
        while True:
            page = self._items.scan(self._prefix, limit=_PAGE, cursor=cursor)
            old = [item for item in page.items if self._age(_read(item)) >= KEEP]
            pruned += sum(self._items.delete(item.key, expect=item.version).ok for item in old)
            if (cursor := page.cursor) is None:
                return pruned

    def _look(self, asked: Asked) -> tuple[Item | None, _Record | None]:
        item = self._items.get(asked.item_key)
        record = None if item is None else _read(item)
        if record is None or self._age(record) >= KEEP:
            return item, None
        if record.body_sha256 != asked.body_sha256:
            raise IdempotencyKeyReused("Idempotency-Key: came before with another body", field="Idempotency-Key")
        return item, record

    def _write(self, asked: Asked, state: Literal["running", "done"], answer: Answer | None, over: Item | None) -> None:
        record = _Record(state, self._owner, self._clock.now(), asked.body_sha256, answer)
        expect = ABSENT if over is None else over.version
        if not self._items.put(asked.item_key, msgspec.json.encode(record), expect=expect).ok:
            raise _busy()

    def _age(self, record: _Record) -> timedelta:
        return self._clock.now() - record.at


def remembered(error: PostroadError) -> bool:
    """Whether an error is an answer like any other; those that a repeat may cure are not kept.

    What does not exist may be made before the repeat comes.
    """
    return error.status < 500 and error.status not in (404, 429)


def _read(item: Item) -> _Record:
    return msgspec.json.decode(item.value, type=_Record)


def _busy() -> Unavailable:
    return Unavailable("the same request is still running", remedy="Repeat it with the same Idempotency-Key.")


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
