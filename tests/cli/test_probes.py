"""The port of probes: it answers JSON, keeps quiet, and says which setting chose a port that cannot be opened."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from typing import Any

import pytest

from postroad.cli.probes import ProbeServer, json_answer
from postroad.errors import ConfigurationError


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    status = 200 if environ["PATH_INFO"] == "/health" else 503
    return json_answer(start_response, status, {"ok": status == 200}, head=environ["REQUEST_METHOD"] == "HEAD")


def ask(port: int, method: str, path: str, host: str = "127.0.0.1") -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    found = answer.status, answer.getheader("Content-Length"), answer.read()
    connection.close()
    return found


def test_answers_are_json_and_a_head_has_no_body(capfd: pytest.CaptureFixture[str]) -> None:
    with ProbeServer("127.0.0.1", 0, "metrics_port") as server, server.answering(app):
        answers = [ask(server.server_port, method, "/health") for method in ("GET", "HEAD")]
        failed = ask(server.server_port, "GET", "/ready")

    assert answers == [(200, "11", b'{"ok":true}'), (200, "11", b"")]
    assert failed == (503, "12", b'{"ok":false}')
    assert capfd.readouterr() == ("", "")


def test_an_address_of_ipv6_is_served() -> None:
    with ProbeServer("[::1]", 0, "metrics_port") as server, server.answering(app):
        assert ask(server.server_port, "GET", "/health", "::1")[0] == 200


def test_a_port_in_use_is_refused_with_the_name_of_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigurationError) as refused:
        ProbeServer("127.0.0.1", taken.getsockname()[1], "variable HEALTH_PORT")

    assert refused.value.field == "HEALTH_PORT"
    assert str(refused.value).startswith("variable HEALTH_PORT: port ")
