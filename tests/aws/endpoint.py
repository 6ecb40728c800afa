"""An endpoint of AWS that says what a test tells it to, for what no emulator does; the rest an emulator may answer."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

Request = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """A status with a JSON body, or a connection that is cut or kept silent.

    What is `added` goes to the emulator as the test left it, and the body is put behind what that answers.
    """

    body: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    added: bool = False
    cut: bool = False
    silent: bool = False


def error(code: str, status: int = 400, message: str = "no") -> Answer:
    return Answer({"__type": f"com.amazonaws.sqs#{code}", "message": message}, status)


def invalid(message: str) -> Answer:
    """DynamoDB's refusal of what it will never take."""
    return Answer({"__type": "com.amazon.coral.validate#ValidationException", "message": message}, 400)


@dataclass
class Endpoint:
    """Where boto3 sends its requests. `requests` are (operation, parameters) as they came."""

    url: str
    requests: list[Request] = field(default_factory=list)
    behind: str | None = None
    """The emulator that answers what the test says nothing about."""
    answers: dict[str, Callable[[dict[str, Any]], Answer | None]] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)

    def on(self, operation: str, *answers: Answer | Callable[[dict[str, Any]], Answer | None]) -> None:
        """Give these answers one after another, the last one for ever; None leaves the answer to the emulator."""
        left = list(answers)

        def answer(parameters: dict[str, Any]) -> Answer | None:
            current = left.pop(0) if len(left) > 1 else left[0]
            return current if isinstance(current, Answer) else current(parameters)

        self.answers[operation] = answer

    def calls(self, operation: str) -> list[dict[str, Any]]:
        """The parameters of each call of the operation."""
        return [parameters for name, parameters in self.requests if name == operation]


@contextmanager
def endpoint(behind: str | None = None) -> Iterator[Endpoint]:
    """Serve one endpoint on a free port, in front of an emulator if one is given."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    scripted = Endpoint(f"http://127.0.0.1:{server.server_port}", behind=behind)
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


_OF_THE_CONNECTION = frozenset({"host", "connection", "content-length", "accept-encoding", "expect"})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        scripted: Endpoint = self.server.scripted  # type: ignore[attr-defined]  # set in `endpoint`
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "X-Amz-Target" in self.headers:
            operation, parameters = self.headers["X-Amz-Target"].rpartition(".")[2], json.loads(body or b"{}")
        else:
            # SNS speaks in forms, S3 in neither.
            parameters = dict(parse_qsl(body.decode(errors="replace"))) if body else {}
            operation = parameters.get("Action", "")
        scripted.requests.append((operation, parameters))
        answer = scripted.answers[operation](parameters) if operation in scripted.answers else None
        if answer is None or answer.added:
            assert scripted.behind is not None, f"nobody answers {operation}"
            # A test may have changed the parameters as AWS would.
            sent = json.dumps(parameters).encode() if operation in scripted.answers else body
            self._pass_on(scripted.behind, sent, {} if answer is None else answer.body)
            return
        if answer.silent:
            scripted.released.wait(120)
        if answer.cut or answer.silent:
            self.close_connection = True
            return
        self._reply(answer)

    def _pass_on(self, behind: str, body: bytes, added: Mapping[str, Any]) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_THE_CONNECTION}
        request = urllib.request.Request(behind + self.path, data=body, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                told = answer.read()
                if added:
                    told = json.dumps({**json.loads(told), **added}).encode()
                self._reply_bytes(answer.status, answer.headers["Content-Type"], told)
        except urllib.error.HTTPError as refusal:
            self._reply_bytes(refusal.code, refusal.headers["Content-Type"], refusal.read())

    def _reply(self, answer: Answer) -> None:
        self._reply_bytes(answer.status, "application/x-amz-json-1.0", json.dumps(answer.body).encode())

    def _reply_bytes(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
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
