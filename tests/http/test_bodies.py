"""What a body must be."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Iterator

import pytest
from tests.http.api import ADMIN, Api, Serve

from postroad.http.app import DeadlineProtocol
from postroad.queues import QueueSpec

SEND = "/queues/orders/messages"


@pytest.fixture
def orders(api: Api) -> Api:
    api.backend.create_queue(QueueSpec("orders"))
    return api


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b'{"a":1}x',
        b"NaN",
        b'{"messages": NaN}',
        b"[" * 100_000,
        b'{"messages":' + b"[" * 100_000,
        b'{"messages": ' + b"1" * 5_000 + b"}",
        b'{"messages": [{"body": "\\ud800"}]}',
        b'{"messages": [{"body": "\xff"}]}',
        b'{"messages": [{"body": "x"}',
        b"null",
        b'{"messages": [{"body": "x", "delay": 1e999}]}',
    ],
)
def test_what_is_not_strict_json_of_the_right_form_is_400_and_sends_nothing(orders: Api, body: bytes) -> None:
    answer = orders.client.post(SEND, content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.json()["detail"]) > 5
    assert orders.backend.queue("orders").peek() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"messages": [{"body": "\\ud800"}]}', "a lone surrogate is not text (byte 24)"),
        (b'{"messages": [{"body": "x"}', "truncated (byte 27)"),
    ],
)
def test_what_breaks_off_is_answered_with_the_position(orders: Api, body: bytes, said: str) -> None:
    answer = orders.client.post(SEND, content=body, headers={"Content-Type": "application/json"})

    assert said in answer.json()["detail"]


def test_of_a_repeated_key_the_last_one_stands(orders: Api) -> None:
    body = b'{"messages": [], "messages": [{"body": "first", "body": "last"}]}'

    answer = orders.client.post(SEND, content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 200
    assert [message.body for message in orders.backend.queue("orders").peek()] == [b"last"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {"Content-Type": "multipart/form-data; boundary=x"},
    ],
)
def test_a_body_that_is_not_plain_json_is_415(orders: Api, headers: dict[str, str]) -> None:
    body = json.dumps({"messages": [{"body": "x"}]}).encode()
    content = gzip.compress(body) if "Content-Encoding" in headers else body

    answer = orders.client.post(SEND, content=content, headers=headers)

    assert (answer.status_code, answer.json()["type"]) == (415, "/errors/not-json")
    assert orders.backend.queue("orders").peek() == []


def test_json_with_a_charset_of_utf_8_is_taken(orders: Api) -> None:
    body = json.dumps({"messages": [{"body": "x"}]}).encode()

    answer = orders.client.post(SEND, content=body, headers={"Content-Type": "Application/JSON; charset=UTF-8"})

    assert answer.status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_one_byte_too_long_is_413_and_one_that_just_fits_is_not(serve: Serve, chunked: bool) -> None:
    api = serve(max_body_bytes=4_096)
    api.backend.create_queue(QueueSpec("orders"))
    frame = len(json.dumps({"messages": [{"body": ""}]}))

    answers = []
    for size in (4_096, 4_097):
        body = json.dumps({"messages": [{"body": "x" * (size - frame)}]}).encode()
        assert len(body) == size
        content = _in_chunks(body) if chunked else body
        answers.append(api.client.post(SEND, content=content, headers={"Content-Type": "application/json"}))

    assert [answer.status_code for answer in answers] == [200, 413]
    assert answers[1].json()["type"] == "/errors/body-too-large"
    assert len(api.backend.queue("orders").peek()) == 1


def _in_chunks(body: bytes) -> Iterator[bytes]:
    yield body[:2_000]
    yield body[2_000:]


LARGE = b" " * 20_000_000


@pytest.mark.parametrize(
    ("path", "token", "status"), [(SEND, ADMIN, 413), (SEND, "nobody", 401), ("/nowhere", ADMIN, 404)]
)
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_a_refused_body_to_its_end_reads_the_answer(
    orders: Api, path: str, token: str, status: int, connection: str, chunked: bool
) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", "Connection": connection}
    client = http.client.HTTPConnection(orders.host, orders.port, timeout=60)
    body = (LARGE[place : place + 65_536] for place in range(0, len(LARGE), 65_536)) if chunked else LARGE

    client.request("POST", path, body=body, headers=headers, encode_chunked=chunked)
    answer = client.getresponse()
    told = json.loads(answer.read())
    if connection == "keep-alive":
        client.request("GET", "/health")
        assert client.getresponse().status == 200
    client.close()

    assert (answer.status, told["status"]) == (status, status)
    assert orders.backend.queue("orders").peek() == []


def test_a_client_that_waits_before_it_sends_a_long_body_gets_its_answer_at_once(orders: Api) -> None:
    with orders.connect() as connection:
        connection.sendall(_head(SEND, length=20_000_000).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))

        assert _status(connection) == 413


def test_a_body_announced_as_too_long_is_refused_before_it_is_sent(orders: Api) -> None:
    with orders.connect() as connection:
        connection.sendall(_head(SEND, length=2_097_153))

        assert _status(connection) == 413


def test_an_endless_body_is_refused_while_it_is_still_coming(serve: Serve) -> None:
    api = serve(max_body_bytes=4_096)
    api.backend.create_queue(QueueSpec("orders"))
    with api.connect() as connection:
        connection.sendall(_head(SEND, length=None))
        for _ in range(5):
            connection.sendall(b"400\r\n" + b" " * 1_024 + b"\r\n")

        assert _status(connection) == 413


def test_a_slow_body_is_408(serve: Serve) -> None:
    api = serve(options={"body_seconds": 0.2})
    api.backend.create_queue(QueueSpec("orders"))
    with api.connect() as connection:
        connection.sendall(_head(SEND, length=100) + b'{"messages"')

        assert _status(connection) == 408
    assert api.backend.queue("orders").peek() == []


def test_headers_that_never_end_close_the_connection(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeadlineProtocol, "header_seconds", 0.2)
    with api.connect() as silent, api.connect() as slow, api.connect() as second:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        second.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        first_answer = _status(second)
        second.sendall(b"GET /health HT")

        assert first_answer == 200
        assert [_closed(connection) for connection in (silent, slow, second)] == [True, True, True]
    assert api.client.get("/health").status_code == 200


def test_what_is_not_http_is_a_problem_too(api: Api) -> None:
    with api.connect() as connection:
        connection.sendall(b"HELLO\r\n\r\n")
        answer = connection.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in answer


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([b"X-%d: x\r\n" % number for number in range(100)], b"431"),
        ([b"X: " + b"x" * 32_768 + b"\r\n"], b"431"),
        ([b"X: " + b"x" * 100_000 + b"\r\n"], b"431"),
        ([b"X-%d: x\r\n" % number for number in range(90)], b"200"),
        ([b"X: x\n"], b"400"),
        ([b"X: x\r\n", b"\n"], b"400"),
    ],
)
def test_sec16_many_or_long_headers_are_431_and_a_bare_line_feed_is_400(
    api: Api, lines: list[bytes], status: bytes
) -> None:
    with api.connect() as connection:
        connection.sendall(
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + b"".join(lines) + b"\r\n"
        )
        answer = connection.makefile("rb").read()

    assert answer.split(b" ")[1] == status
    assert (b"application/problem+json" in answer) == (status != b"200")


def _head(path: str, *, length: int | None) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ADMIN}\r\n"
        f"Content-Type: application/json\r\n{size}\r\n\r\n"
    ).encode()


def _status(connection: socket.socket) -> int:
    return int(connection.recv(4_096).split(b" ")[1])


def _closed(connection: socket.socket) -> bool:
    """Whether the server hangs up; what it still says before is read away."""
    try:
        while connection.recv(4_096):
            pass
    except ConnectionResetError:
        pass
    return True
