"""Performing a change: once per Idempotency-Key where the caller sent one, else as often as asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import Response

from postroad.errors import PostroadError
from postroad.http.idempotency import Answer, Asked, Memory, remembered
from postroad.http.requests import MEDIA_TYPE, ApiRequest
from postroad.views import problem

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
