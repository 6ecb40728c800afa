"""Server-Sent Events of agents: what a stream sends, holds and gives back."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.http.api import Serve
from tests.http.village import Village
from tests.waiting import eventually

from postroad.http import server_sent_events


def _event(lines: Iterator[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if not line and found:
            return found
        if name:
            found[name] = value
    raise AssertionError("the stream ended")


def test_a_stream_brings_events_holds_ten_and_gives_back_what_was_not_acked(village: Village) -> None:
    village.publish(*range(12))
    with village.cat.stream("GET", "/agents/cat/stream") as answer:
        lines = answer.iter_lines()
        events = [_event(lines) for _ in range(10)]
        bodies = [json.loads(event["data"]) for event in events]
        in_flight = village.agents.stats("cat").in_flight
        with village.api.as_caller(village.tokens["cat"]) as other:
            other.post("/agents/cat/acks", json={"receipts": [body["receipt"] for body in bodies]})
        eleventh = json.loads(_event(lines)["data"])
        kind = answer.headers["content-type"]
    eventually(lambda: village.agents.stats("cat").in_flight == 0)

    assert kind.startswith("text/event-stream")
    assert [body["data"]["n"] for body in bodies] == list(range(10))
    assert events[0]["event"] == "message"
    assert events[0]["id"] == bodies[0]["messageId"]
    assert in_flight == 10
    assert eleventh["data"]["n"] == 10
    again = {each["data"]["n"]: each["receiveCount"] for each in village.lease()}
    # What was read may have been handled; the last one may have been given back before it was sent.
    assert again[10] == 2
    assert again[11] in (1, 2)


def test_an_event_that_its_stream_never_gets_acked_becomes_a_dead_letter(village: Village) -> None:
    village.publish(1)
    counts = []
    for _ in range(5):
        with village.cat.stream("GET", "/agents/cat/stream") as answer:
            counts.append(json.loads(_event(answer.iter_lines())["data"])["receiveCount"])
        eventually(lambda: village.agents.stats("cat").in_flight == 0)

    assert counts == [1, 2, 3, 4, 5]
    assert village.lease() == []
    assert [dead["receiveCount"] for dead in village.cat.get("/agents/cat/dead-letters").json()["items"]] == [5]


def test_what_was_leased_for_a_stream_and_never_written_costs_no_receive(serve: Serve) -> None:
    village = Village(serve(send_buffer=16_384))
    village.agents.subscribe("bob", "ann")
    for n in range(10):
        village.ann.post("/events", json={"eventType": "x", "data": {"n": n, "text": "x" * 250_000}})
    village.move()
    connection = socket.socket()
    # So little room that only the first events leave the server; it is set before the connection has a window.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect((village.api.host, village.api.port))
    connection.sendall(
        b"GET /agents/bob/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        + f"Authorization: Bearer {village.tokens['bob']}\r\n\r\n".encode()
    )
    lane = village.agents.queue("bob")
    eventually(lambda: [message.state for message in lane.peek()].count("in_flight") == 10)
    assert b"event: message" in _read_until(connection, b"event: message")

    connection.close()
    eventually(lambda: village.agents.stats("bob").in_flight == 0)

    counts = [message.receive_count for message in lane.peek()]
    assert (counts[0], counts[-1]) == (1, 0)
    for client in village.clients.values():
        client.close()


def _read_until(connection: socket.socket, text: bytes) -> bytes:
    received = b""
    while text not in received:
        more = connection.recv(1_024)
        assert more
        received += more
    return received


def test_a_stopping_server_gives_back_what_its_streams_hold_and_it_costs_no_receive(serve: Serve) -> None:
    village = Village(serve())
    village.publish(1)
    with village.cat.stream("GET", "/agents/cat/stream") as answer:
        lines = answer.iter_lines()
        first = json.loads(_event(lines)["data"])
        village.api.stop()
        rest = list(lines)
    eventually(lambda: village.agents.stats("cat").in_flight == 0)

    assert first["receiveCount"] == 1
    assert not any(rest)
    assert [message.receive_count for message in village.agents.queue("cat").peek()] == [0]
    for client in village.clients.values():
        client.close()


@pytest.mark.parametrize("reads", [True, False], ids=["a client that never acks", "a client that reads nothing"])
def test_a_stream_keeps_a_lease_that_nobody_acks_for_a_while_only(
    village: Village, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    monkeypatch.setattr(server_sent_events, "MAX_HELD_SECONDS", 2.0)
    village.ann.post("/events", json={"eventType": "x", "data": {"n": 1, "text": "x" * 250_000}})
    village.move()
    connection = village.api.connect()
    connection.sendall(
        b"GET /agents/cat/stream?visibility=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        + f"Authorization: Bearer {village.tokens['cat']}\r\n\r\n".encode()
    )
    lane = village.agents.queue("cat")
    eventually(lambda: lane.peek()[0].receive_count == 1)
    if reads:
        # The stream goes on, and the event comes again and again until it is dead.
        _read_until(connection, b'"receiveCount":2')

    eventually(lambda: village.agents.stats("cat").dead == 1)
    connection.close()


def test_head_of_a_stream_leases_nothing(village: Village) -> None:
    village.publish(1)

    answer = village.cat.head("/agents/cat/stream")

    assert (answer.status_code, answer.content) == (200, b"")
    assert village.lease()[0]["receiveCount"] == 1


def test_a_stopping_server_ends_streams_and_polls_at_once(village: Village) -> None:
    ended = threading.Event()

    def read() -> None:
        with village.cat.stream("GET", "/agents/cat/stream") as answer:
            for _ in answer.iter_lines():
                pass
        ended.set()

    reading = threading.Thread(target=read)
    reading.start()
    eventually(lambda: village.api.context.streams.open == 1)
    village.api.stop()
    reading.join(120)

    assert ended.is_set()
