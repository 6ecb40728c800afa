"""How answers reach the connection: head and body in one write, a head alone within a turn, nothing lost by a close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.http.api import Api

from postroad.http.app import JoinedTransport


class Recording(asyncio.Transport):
    """Remembers what was written, and that it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []

    def write(self, data: Any) -> None:
        self.seen.append(bytes(data))

    def close(self) -> None:
        self.seen.append(b"closed")

    def is_closing(self) -> bool:
        return b"closed" in self.seen


def written(write: Callable[[JoinedTransport], None], *, turns: int = 0) -> list[bytes]:
    """Return what has reached the connection some turns of the event loop later."""

    async def run() -> list[bytes]:
        transport = Recording()
        write(JoinedTransport(transport, asyncio.get_running_loop()))
        for _ in range(turns):
            await asyncio.sleep(0)
        return list(transport.seen)

    return asyncio.run(run())


def test_head_and_body_are_sent_by_one_write() -> None:
    def answer(joined: JoinedTransport) -> None:
        for part in (b"head ", b"body", b""):
            joined.write(part)

    assert written(answer) == written(answer, turns=3) == [b"head body"]


def test_an_answer_without_a_body_is_sent_at_its_end() -> None:
    def answer(joined: JoinedTransport) -> None:
        joined.write(b"head")
        joined.write(b"")

    assert written(answer) == [b"head"]


def test_a_head_whose_body_comes_later_is_sent_in_the_next_turn() -> None:
    assert written(lambda joined: joined.write(b"head")) == []
    assert written(lambda joined: joined.write(b"head"), turns=1) == [b"head"]


def test_a_long_stream_holds_no_more_than_one_write() -> None:
    def stream(joined: JoinedTransport) -> None:
        for part in (b"1", b"2", b"3", b"4", b"5"):
            joined.write(part)

    assert written(stream) == [b"12", b"34"]
    assert written(stream, turns=1) == [b"12", b"34", b"5"]


def test_a_close_sends_what_is_held() -> None:
    def refuse(joined: JoinedTransport) -> None:
        joined.write(b"head")
        joined.close()
        assert joined.is_closing()

    assert written(refuse, turns=1) == [b"head", b"closed"]


class Spied:
    """A transport of which every write is noted."""

    def __init__(self, transport: asyncio.Transport, seen: list[bytes]) -> None:
        self._transport, self._seen = transport, seen

    def write(self, data: bytes) -> None:
        self._seen.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def test_the_server_writes_an_answer_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    class SpiedJoinedTransport(JoinedTransport):
        def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
            super().__init__(cast(asyncio.Transport, Spied(transport, seen)), loop)

    monkeypatch.setattr("postroad.http.app.JoinedTransport", SpiedJoinedTransport)

    with api.as_caller(None) as caller:
        assert caller.get("/health").json()["status"] == "ok"

    [answer] = seen
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"status":"ok"' in answer
