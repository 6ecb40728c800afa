"""`GET /live`: the overview as it changes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.api import Api, Serve
from tests.waiting import eventually

from postroad import OutgoingMessage, PostroadError, QueueSpec
from postroad.http import server_sent_events


def events(answer: httpx.Response) -> Iterator[dict[str, str]]:
    """The events of a stream; a comment is an event without data."""
    found: dict[str, str] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if line:
            found[name or "comment"] = value
        elif found:
            yield found
            found = {}


def first_event(stream: Iterator[dict[str, str]]) -> dict[str, str]:
    return next(event for event in stream if "data" in event)


def overview(event: dict[str, str]) -> dict[str, Any]:
    return dict(json.loads(event["data"]))


def test_the_overview_comes_at_once_and_within_two_seconds_of_a_change(api: Api) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    with api.client.stream("GET", "/live") as answer:
        stream = events(answer)
        first = first_event(stream)
        queue.send([OutgoingMessage("a")])
        began = time.monotonic()
        second = first_event(stream)
        took = time.monotonic() - began

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert first["event"] == second["event"] == "overview"
    assert overview(first)["backlog"]["visible"] == 0
    assert overview(second)["backlog"]["visible"] == 1
    assert first["id"] != second["id"]
    assert took < 10
    assert set(overview(second)) == set(api.client.get("/overview").json())


def test_a_viewer_that_comes_back_is_sent_only_what_it_has_not_seen(serve: Serve) -> None:
    first_server = serve()
    queue = first_server.backend.create_queue(QueueSpec("orders"))
    with first_server.client.stream("GET", "/live") as answer:
        seen = first_event(events(answer))["id"]
    other = serve()

    with other.client.stream("GET", "/live", headers={"Last-Event-ID": "of-another-time"}) as answer:
        unknown = first_event(events(answer))["id"]
    with other.client.stream("GET", "/live", headers={"Last-Event-ID": seen}) as answer:
        stream = events(answer)
        assert next(stream) == {"comment": "connected"}
        queue.send([OutgoingMessage("a")])
        news = first_event(stream)

    assert unknown == seen
    assert overview(news)["backlog"]["visible"] == 1


def test_a_quiet_stream_has_comments(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_sent_events, "KEEP_ALIVE_SECONDS", 0.3)

    with api.client.stream("GET", "/live") as answer:
        stream = events(answer)
        found = [next(stream) for _ in range(4)]

    assert [event.get("comment") for event in found] == ["connected", None, "keep-alive", "keep-alive"]


def test_a_viewer_is_sent_changes_again_after_the_tokens_could_not_be_read(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, tokens = api.backend.create_queue(QueueSpec("orders")), api.context.tokens.path
    with api.as_caller(api.token("read")) as reader, reader.stream("GET", "/live") as answer:
        stream = events(answer)
        first_event(stream)
        refused: list[PostroadError] = []
        look = api.context.identities.look

        def noted() -> None:
            try:
                look()
            except PostroadError as error:
                refused.append(error)
                raise

        monkeypatch.setattr(api.context.identities, "look", noted)
        before = tokens.read_bytes()
        tokens.write_bytes(b"damaged")
        eventually(lambda: refused)
        tokens.write_bytes(before)
        queue.send([OutgoingMessage("a")])
        news = first_event(stream)

    assert overview(news)["backlog"]["visible"] == 1


def test_two_hundred_viewers_cost_one_read_a_second(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = api.backend.create_queue(QueueSpec("orders"))
    reads: list[float] = []
    census = api.backend.census

    def counted() -> Any:
        reads.append(time.monotonic())
        return census()

    connections = []
    for _ in range(200):
        connection = api.connect()
        token = api.client.headers["Authorization"]
        connection.sendall(f"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\n\r\n".encode())
        connections.append(connection)
    eventually(lambda: api.context.live.open == 200)
    monkeypatch.setattr(api.backend, "census", counted)
    began = time.monotonic()
    queue.send([OutgoingMessage("a")])

    received = []
    for connection in connections:
        text = b""
        while b'"visible":1' not in text:
            text += connection.recv(65_536)
        received.append(text)
    time.sleep(max(0.0, 5 - (time.monotonic() - began)))
    seconds = time.monotonic() - began
    for connection in connections:
        connection.close()

    assert len(received) == 200
    assert len(reads) <= seconds + 1
    eventually(lambda: api.context.live.open == 0)


def test_a_stream_ends_when_its_token_is_revoked(api: Api) -> None:
    with api.as_caller(api.token("read", "viewer")) as viewer, viewer.stream("GET", "/live") as answer:
        stream = events(answer)
        first_event(stream)
        api.client.delete("/tokens/viewer")

        rest = list(stream)

    assert len(rest) <= 3


def test_a_session_may_watch_too_and_no_token_may_not(api: Api) -> None:
    with api.as_caller(None) as browser:
        assert browser.get("/live").status_code == 401
        token = api.token("read", "reader")
        assert browser.post("/login", data={"token": token}).status_code == 303
        with browser.stream("GET", "/live") as answer:
            assert answer.status_code == 200
            assert overview(first_event(events(answer)))["window_seconds"] == 300


def test_a_server_that_stops_ends_its_streams(api: Api) -> None:
    with api.client.stream("GET", "/live") as answer:
        stream = events(answer)
        first_event(stream)
        stopping = threading.Thread(target=api.stop)
        began = time.monotonic()
        stopping.start()
        rest = list(stream)
        stopping.join()

    assert len(rest) <= 1
    assert time.monotonic() - began < 15


def test_streams_count_among_those_that_wait(serve: Serve) -> None:
    api = serve(options={"max_polls": 1})
    with api.client.stream("GET", "/live") as answer:
        stream = events(answer)
        first_event(stream)
        with api.as_caller(api.client.headers["Authorization"].removeprefix("Bearer ")) as other:
            refused = other.get("/live")
            healthy = other.get("/overview")

    assert (refused.status_code, healthy.status_code) == (429, 200)
    assert refused.headers["Retry-After"]


def test_other_windows_and_wrong_ones(api: Api) -> None:
    with api.client.stream("GET", "/live", params={"window": 3600}) as answer:
        assert overview(first_event(events(answer)))["step_seconds"] == 60

    assert api.client.get("/live", params={"window": 0}).json()["field"] == "window"
    head = api.client.head("/live")
    assert (head.status_code, head.content) == (200, b"")
