"""An AWS endpoint that says what a test tells it to, for what no emulator does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

Request = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """A status with a JSON body, or a connection that is cut or kept silent."""

    body: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    cut: bool = False
    silent: bool = False


def error(code: str, status: int = 400, message: str = "no") -> Answer:
    return Answer({"__type": f"com.amazonaws.sqs#{code}", "message": message}, status)


@dataclass
class Endpoint:
    """Where boto3 sends its requests. `requests` are (operation, parameters) as they came."""

    url: str
    requests: list[Request] = field(default_factory=list)
    answers: dict[str, Callable[[dict[str, Any]], Answer]] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)

    def on(self, operation: str, *answers: Answer | Callable[[dict[str, Any]], Answer]) -> None:
        """Give these answers one after another, the last one for ever."""
        left = list(answers)

        def answer(parameters: dict[str, Any]) -> Answer:
            current = left.pop(0) if len(left) > 1 else left[0]
            return current if isinstance(current, Answer) else current(parameters)

        self.answers[operation] = answer

    def calls(self, operation: str) -> list[dict[str, Any]]:
        """The parameters of each call of the operation."""
        return [parameters for name, parameters in self.requests if name == operation]


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    """Serve one endpoint on a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    scripted = Endpoint(f"http://127.0.0.1:{server.server_port}")
    server.scripted = scripted  # type: ignore[attr-defined]  # the handler finds its script here
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield scripted
    finally:
        scripted.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        scripted: Endpoint = self.server.scripted  # type: ignore[attr-defined]  # set in `endpoint`
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "X-Amz-Target" in self.headers:
            operation, parameters = self.headers["X-Amz-Target"].rpartition(".")[2], json.loads(body or b"{}")
        else:
            # SNS speaks in forms.
            parameters = dict(parse_qsl(body.decode()))
            operation = parameters["Action"]
        scripted.requests.append((operation, parameters))
        answer = scripted.answers[operation](parameters)
        if answer.silent:
            scripted.released.wait(30)
        if answer.cut or answer.silent:
            self.close_connection = True
            return
        self._reply(answer)

    def _reply(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def all_sent(parameters: dict[str, Any]) -> Answer:
    """Accept every entry of a batch."""
    return sent_but(parameters)


def sent_but(parameters: dict[str, Any], **failed: Mapping[str, Any]) -> Answer:
    """Accept the entries of a batch but for those whose bodies are named."""
    bad = [{"Id": e["Id"], **failed[e["MessageBody"]]} for e in parameters["Entries"] if e["MessageBody"] in failed]
    good = [
        {"Id": e["Id"], "MessageId": f"id-{e['MessageBody'][:20]}", "MD5OfMessageBody": ""}
        for e in parameters["Entries"]
        if e["MessageBody"] not in failed
    ]
    return Answer({"Successful": good, "Failed": bad})
