"""Idempotency keys: a repeated request gets the first answer again, and its effect happens once."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import msgspec
from litestar import Response
from litestar.types import ASGIApp, HTTPResponseBodyEvent, HTTPResponseStartEvent, Receive, Scope, Send

from postroad.clock import Clock
from postroad.errors import IdempotencyKeyReused, InvalidInput, OutcomeUnknown, PostroadError, Unavailable
from postroad.items import ABSENT, Item, Items
from postroad.tasks import scan
from postroad.views import PROBLEM_MEDIA_TYPE, problem

if TYPE_CHECKING:
    from postroad.http.requests import ApiRequest

KEEP = timedelta(hours=24)
WAIT_SECONDS = 10.0
_KEY = re.compile(r"[ -~]{1,128}")
_PAGE = 100
SEED = "seed"
"""The key of the seed of ids, in the state of a request that may run again after a crash."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of a route, before it is encoded; a route that always has the status it declares makes none."""

    status: int
    document: Any


class KeyedRequest(msgspec.Struct, frozen=True):
    """A request with a key: where its answer is stored, and the body that a repeat must have."""

    item_key: str
    body_sha256: str


class _Record(msgspec.Struct, frozen=True):
    owner: str
    at: datetime
    body_sha256: str
    answer: Answer | None = None
    """None while the request runs."""
    seed: UUID | None = None
    """What the ids of the effect are made from, so that a repeat after a crash makes the same ones."""


class AnswerStore:
    """The answers of the last 24 hours, stored with the data, so that they outlive this process."""

    def __init__(self, items: Items, *, tenant: str, clock: Clock, joins_writes: bool) -> None:
        self._items = items
        self._prefix = f"{tenant}/http-answers/"
        self._clock = clock
        self._owner = secrets.token_hex(8)
        self.joins_writes = joins_writes

    def keyed_request(self, key: str, *, route: str, identity: str, body: bytes) -> KeyedRequest:
        """Return where the answer to this request is stored."""
        if _KEY.fullmatch(key) is None:
            raise InvalidInput(
                "Idempotency-Key: is not 1 to 128 printable ASCII characters",
                field="Idempotency-Key",
                remedy="Send a key such as a UUID, or none.",
            )
        place = hashlib.sha256(f"{identity}\0{route}\0{key}".encode()).hexdigest()
        return KeyedRequest(self._prefix + place, hashlib.sha256(body).hexdigest())

    def recall(self, keyed: KeyedRequest) -> Answer | None:
        """Return the first answer, if there is one."""
        _, record = self._look(keyed)
        return None if record is None else record.answer

    def claim(self, keyed: KeyedRequest) -> Answer | UUID:
        """Record that the request runs and return the seed of its ids; return its answer if it has run already."""
        item, record = self._look(keyed)
        if record is not None and record.answer is not None:
            return record.answer
        if record is not None and record.owner != self._owner and self._age(record) < timedelta(seconds=WAIT_SECONDS):
            raise _busy()
        seed = (None if record is None else record.seed) or uuid4()
        self._write(keyed, item, seed=seed)
        return seed

    def keep(self, keyed: KeyedRequest, answer: Answer) -> None:
        """Store the answer, in the same commit as the effect if the store can do that."""
        item, _ = self._look(keyed)
        self._write(keyed, item, answer=answer)

    def forget(self, keyed: KeyedRequest) -> None:
        """Forget the request, so that a repeat runs again."""
        self._items.delete(keyed.item_key)

    def prune(self) -> int:
        """Delete answers older than 24 hours, and return how many."""
        answers = scan(self._items, self._prefix, limit=_PAGE)
        old = (item for item in answers if self._age(_read(item)) >= KEEP)
        return sum(self._items.delete(item.key, expect=item.version).ok for item in old)

    def _look(self, keyed: KeyedRequest) -> tuple[Item | None, _Record | None]:
        item = self._items.get(keyed.item_key)
        record = None if item is None else _read(item)
        if record is None or self._age(record) >= KEEP:
            return item, None
        if record.body_sha256 != keyed.body_sha256:
            raise IdempotencyKeyReused("Idempotency-Key: was used before with another body", field="Idempotency-Key")
        return item, record

    def _write(
        self, keyed: KeyedRequest, over: Item | None, *, answer: Answer | None = None, seed: UUID | None = None
    ) -> None:
        record = _Record(self._owner, self._clock.now(), keyed.body_sha256, answer, seed)
        expect = ABSENT if over is None else over.version
        if not self._items.put(keyed.item_key, msgspec.json.encode(record), expect=expect).ok:
            raise _busy()

    def _age(self, record: _Record) -> timedelta:
        return self._clock.now() - record.at


def remembered(error: PostroadError) -> bool:
    """Return whether an error is stored as the answer; an error that a repeat may not meet again is not.

    What does not exist may be created before the repeat.
    """
    return error.status < 500 and error.status not in (404, 429)


def _read(item: Item) -> _Record:
    return msgspec.json.decode(item.value, type=_Record)


def _busy() -> Unavailable:
    return Unavailable("the same request is still running", remedy="Repeat it with the same Idempotency-Key.")


class KeyLocks:
    """A lock for each key: one request runs, the others wait for a while."""

    def __init__(self) -> None:
        # A lock lasts as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the key's lock; raise `Unavailable` if it is not free in time."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            await asyncio.wait_for(lock.acquire(), WAIT_SECONDS)
        except TimeoutError:
            raise Unavailable("the same request is still running") from None
        try:
            yield
        finally:
            lock.release()


Revive = Callable[[Any], Any]


async def perform(request: ApiRequest, effect: Callable[[], Any], *, revive: Revive | None = None) -> Response[Any]:
    """Perform one write and return the response. With a key, both commit together if the store can do that.

    `effect` returns an `Answer`, or the document alone. `revive` makes a stored answer complete again, for example with
    a new secret.
    """
    if (keyed := await _keyed_request(request)) is None:
        return _Encoded(_answer(request, await request.context.run(effect)))
    store = request.context.answer_store
    if not store.joins_writes or revive is not None:
        return await _run_keyed(request, keyed, lambda: request.context.run(effect), revive)
    async with request.context.key_locks.hold(keyed.item_key):
        answer, replayed = await request.context.run(lambda: _joined(request, store, keyed, effect))
    return _Encoded(answer, replayed=replayed)


async def perform_waiting(request: ApiRequest, effect: Callable[[], Awaitable[Any]]) -> Response[Any]:
    """Perform what may wait. With a key, the key is stored first, and forgotten if the effect fails."""
    if (keyed := await _keyed_request(request)) is not None:
        return await _run_keyed(request, keyed, effect, None)
    return _Encoded(_answer(request, await effect()))


def _answer(request: ApiRequest, found: Any) -> Answer:
    return found if isinstance(found, Answer) else Answer(request.route_handler.status_code, found)


async def _keyed_request(request: ApiRequest) -> KeyedRequest | None:
    """Return where the answer is stored, if the request has a key; refuse a body that the route does not declare."""
    # A form of a page has no key, and its fields were read with its proof.
    if request.is_form:
        return None
    if request.route_handler.parsed_data_field is None:
        await request.no_body()
    if (key := request.raw_header(b"idempotency-key")) is None:
        return None
    assert request.user is not None
    route = f"{request.method} {request.scope['path']}"
    return request.context.answer_store.keyed_request(
        key, route=route, identity=request.user.name, body=await request.body()
    )


def _joined(
    request: ApiRequest, store: AnswerStore, keyed: KeyedRequest, effect: Callable[[], Any]
) -> tuple[Answer, bool]:
    if (before := store.recall(keyed)) is not None:
        return before, True
    try:
        with request.context.backend.transaction():
            answer = _answer(request, effect())
            store.keep(keyed, answer)
    except PostroadError as error:
        if not remembered(error):
            raise
        answer = _refusal(request, error)
        store.keep(keyed, answer)
    return answer, False


async def _run_keyed(
    request: ApiRequest, keyed: KeyedRequest, effect: Callable[[], Awaitable[Any]], revive: Revive | None
) -> Response[Any]:
    run, store = request.context.run, request.context.answer_store
    async with request.context.key_locks.hold(keyed.item_key):
        if isinstance(before := await run(lambda: store.claim(keyed)), Answer):
            if revive is not None and before.status < 400:
                document = before.document
                before = Answer(before.status, await run(lambda: revive(document)))
            return _Encoded(before, replayed=True)
        request.scope["state"][SEED] = before
        try:
            answer = _answer(request, await effect())
        except OutcomeUnknown:
            # A repeat runs again, under the same ids.
            raise
        except BaseException as error:
            if not isinstance(error, PostroadError) or not remembered(error):
                await run(lambda: store.forget(keyed))
                raise
            answer = _refusal(request, error)
        stored = msgspec.to_builtins(answer.document)
        if isinstance(stored, dict):
            # The secret of a token is never stored.
            stored.pop("token", None)
        await run(lambda: store.keep(keyed, Answer(answer.status, stored)))
        return _Encoded(answer)


def _refusal(request: ApiRequest, error: PostroadError) -> Answer:
    return Answer(error.status, problem(error, request_id=request.request_id))


class _Encoded(Response[Any]):
    """An answer that is encoded already: the framework would encode, copy and look up what is known here."""

    def __init__(self, answer: Answer, *, replayed: bool = False) -> None:
        body = b"" if answer.status == 204 else msgspec.json.encode(answer.document)
        super().__init__(body, status_code=answer.status)
        headers = [(b"idempotency-replayed", b"true")] if replayed else []
        if body:
            media_type = PROBLEM_MEDIA_TYPE if answer.status >= 400 else "application/json"
            headers += ((b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body)))
        self._start: HTTPResponseStartEvent
        self._start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        self._body: HTTPResponseBodyEvent = {"type": "http.response.body", "body": body, "more_body": False}

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIApp:  # type: ignore[override]  # it is only ever called
        """Return what the framework calls to send the answer."""
        return self._send

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(self._start)
        await send(self._body)
