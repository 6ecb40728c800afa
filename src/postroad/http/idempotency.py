"""Idempotency keys: the same request again gets the first answer again, and the effect happens once."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from litestar import Response

from postroad.clock import Clock
from postroad.errors import IdempotencyKeyReused, InvalidInput, PostroadError, Unavailable
from postroad.http.requests import MEDIA_TYPE, ApiRequest
from postroad.items import ABSENT, Item, Items
from postroad.views import problem

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

    def __init__(self, items: Items, *, tenant: str, clock: Clock) -> None:
        self._items = items
        self._prefix = f"{tenant}/http-answers/"
        self._clock = clock
        self._owner = secrets.token_hex(8)
        self.joins_writes = items.traits.joins_writes

    def asked(self, key: str, *, route: str, identity: str, body: bytes) -> Asked:
        """Where the answer to this request is kept."""
        if _KEY.fullmatch(key) is None:
            raise InvalidInput(
                "Idempotency-Key: is not 1 to 128 printable ASCII characters", field="Idempotency-Key",
                remedy="Send a key such as a UUID, or none.",
            )  # fmt: skip
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


Revive = Callable[[Any], Any]


async def perform(request: ApiRequest, effect: Callable[[], Answer], *, revive: Revive | None = None) -> Response[Any]:
    """Do one write and answer it. With a key, key and write commit together where the store can do that."""
    if (asked := await _asked(request)) is None:
        return _response(await request.context.run(effect))
    memory = request.context.memory
    if not memory.joins_writes or revive is not None:
        return await _keyed(request, asked, lambda: request.context.run(effect), revive)
    async with request.context.turns.turn(asked.item_key):
        answer, replayed = await request.context.run(lambda: _joined(request, memory, asked, effect))
    return _response(answer, replayed=replayed)


async def perform_waiting(request: ApiRequest, effect: Callable[[], Awaitable[Answer]]) -> Response[Any]:
    """Do what may wait a while. With a key, the key is written first, and an effect that fails is forgotten."""
    if (asked := await _asked(request)) is not None:
        return await _keyed(request, asked, effect, None)
    return _response(await effect())


async def _asked(request: ApiRequest) -> Asked | None:
    if (key := request.raw_header(b"idempotency-key")) is None:
        return None
    assert request.user is not None
    route = f"{request.method} {request.scope['path']}"
    return request.context.memory.asked(key, route=route, identity=request.user.name, body=await request.body())


def _joined(request: ApiRequest, memory: Memory, asked: Asked, effect: Callable[[], Answer]) -> tuple[Answer, bool]:
    if (before := memory.recall(asked)) is not None:
        return before, True
    try:
        with request.context.backend.transaction():
            answer = effect()
            memory.keep(asked, answer)
    except PostroadError as error:
        if not remembered(error):
            raise
        answer = _refusal(request, error)
        memory.keep(asked, answer)
    return answer, False


async def _keyed(
    request: ApiRequest, asked: Asked, effect: Callable[[], Awaitable[Answer]], revive: Revive | None
) -> Response[Any]:
    run, memory = request.context.run, request.context.memory
    async with request.context.turns.turn(asked.item_key):
        if (before := await run(lambda: memory.claim(asked))) is not None:
            return await _again(request, before, revive)
        try:
            answer = await effect()
        except BaseException as error:
            if not isinstance(error, PostroadError) or not remembered(error):
                await run(lambda: memory.forget(asked))
                raise
            answer = _refusal(request, error)
        await run(lambda: memory.keep(asked, _storable(answer)))
        return _response(answer)


async def _again(request: ApiRequest, before: Answer, revive: Revive | None) -> Response[Any]:
    if revive is None or before.status >= 400:
        return _response(before, replayed=True)
    document = await request.context.run(lambda: revive(before.document))
    return _response(Answer(before.status, document), replayed=True)


def _storable(answer: Answer) -> Answer:
    """The answer as it may be stored: without the secret of a token."""
    document = msgspec.to_builtins(answer.document)
    if not isinstance(document, dict):
        return answer
    return Answer(answer.status, {key: value for key, value in document.items() if key != "token"})


def _refusal(request: ApiRequest, error: PostroadError) -> Answer:
    return Answer(error.status, problem(error, request_id=request.request_id))


def _response(answer: Answer, *, replayed: bool = False) -> Response[Any]:
    headers = {"Idempotency-Replayed": "true"} if replayed else {}
    media_type = MEDIA_TYPE if answer.status >= 400 else "application/json"
    body = b"" if answer.status == 204 else msgspec.json.encode(answer.document)
    return Response(body, status_code=answer.status, media_type=media_type, headers=headers)
