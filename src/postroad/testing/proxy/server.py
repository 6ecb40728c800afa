"""The proxy itself: an HTTP server on this machine that forwards requests, and the faults it injects."""

from __future__ import annotations

import http.client
import os
import random
import re
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from postroad.testing.proxy.rules import AwsRules
from postroad.testing.proxy.wire import Answer, Request, batch_of, refusal, throttled

FAULTS: Final = (
    *("drop_before", "drop_after_apply", "reset_mid_body", "hang:S", "http_500", "http_503", "throttle"),
    *("partial_batch", "duplicate_request", "truncate", "bad_md5", "forbidden"),
)
"""The faults that a proxy can inject; S is a number of seconds."""
_HANG: Final = re.compile(r"hang:\d+(\.\d+)?")
_MD5: Final = re.compile(rb'("MD5Of\w+": ?"|<MD5Of\w+>)([0-9a-f]{32})')
_CHECKSUMS: Final = ("etag", "content-md5", "x-amz-checksum-")
_OF_THE_CONNECTION: Final = frozenset(
    {"connection", "content-length", "date", "expect", "host", "keep-alive", "server", "transfer-encoding"}
)
_LONGEST_SECONDS: Final = 120.0
_MADE_HERE: Final[dict[str, Callable[[Request], Answer]]] = {
    "http_500": lambda request: refusal(request, 500, "InternalFailure", "injected"),
    "http_503": lambda request: refusal(request, 503, "ServiceUnavailable", "injected"),
    "throttle": throttled,
    "forbidden": lambda request: refusal(request, 403, _denied(request), "not authorized to perform this action"),
}


class Seen(NamedTuple):
    """A request that came: its action, the status that the client got (None for no answer), and the fault, if any."""

    action: str
    status: int | None
    fault: str | None


@dataclass(eq=False)
class _Rule:
    fault: str
    p: float
    match: str
    left: int | None

    def fits(self, request: Request) -> bool:
        path = request.path.partition("?")[0]
        if self.left == 0 or not (fnmatchcase(request.action, self.match) or fnmatchcase(path, self.match)):
            return False
        return self.fault != "partial_batch" or bool((batch := batch_of(request)) and batch.ids)


class FaultProxy:
    """An HTTP proxy before AWS or an emulator that breaks calls on purpose, for any code that uses boto3.

    Use it as a context manager, and give `url` to the client as its `endpoint_url`. It listens on 127.0.0.1 only.

    Args:
        upstream: The address that requests are forwarded to, such as "http://127.0.0.1:4566".
        seed: The seed of the dice that `p` throws and that choose the entries that `partial_batch` fails.
        port: The port to listen on; 0 takes a free one.
        aws_rules: Whether the proxy applies rules of AWS that emulators lack: five minutes of deduplication,
            increasing sequence numbers, leases that end, and the refusal of what AWS refuses.

    Example:
        with FaultProxy("http://127.0.0.1:4566") as proxy:
            proxy.add("drop_after_apply", match="SendMessage*", times=1)
            sqs = boto3.client("sqs", endpoint_url=proxy.url)
    """

    def __init__(self, upstream: str, *, seed: int = 0, port: int = 0, aws_rules: bool = False) -> None:
        self.upstream = upstream.rstrip("/")
        self.injected: Counter[str] = Counter()
        """How often each fault was injected."""
        self.seen: list[Seen] = []
        """Every request that was answered or cut off, in that order."""
        self._rules: list[_Rule] = []
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._port = port
        self._aws = AwsRules() if aws_rules else None
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        """The address for the client's `endpoint_url`, inside the context."""
        if self._server is None:
            raise RuntimeError("the proxy is not running: use it as a context manager")
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultProxy:
        self._server = _Server(self, self._port)
        self._server.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def add(self, fault: str, *, p: float = 1.0, match: str = "*", times: int | None = None) -> None:
        """Inject a fault into the requests that come from now on; the first one added that applies is taken.

        Args:
            fault: `drop_before` cuts the connection before the request goes upstream, `drop_after_apply` after upstream
                has acted, `reset_mid_body` in the middle of the answer; `hang:S` holds the answer for S seconds;
                `http_500`, `http_503`, `throttle` and `forbidden` answer without upstream; `partial_batch` fails some
                entries of a batch, which do not go upstream; `duplicate_request` sends the request twice; `truncate`
                halves the body of the answer; `bad_md5` makes its checksums wrong.
            p: The probability for each request that matches.
            match: A glob over the action of AWS, such as "SendMessage*", or over the path.
            times: How many requests are hit at most; by default there is no limit.

        Raises:
            ValueError: There is no such fault, or a number is out of range.
        """
        if fault not in FAULTS[:3] + FAULTS[4:] and not _HANG.fullmatch(fault):
            raise ValueError(f"fault: {fault!r} is not one of {', '.join(FAULTS)} (S in seconds, such as hang:0.5)")
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p: {p!r} is not a probability; use a number from 0 to 1")
        if times is not None and times < 1:
            raise ValueError(f"times: {times!r} is not a count; use 1 or more, or None for no limit")
        with self._lock:
            self._rules.append(_Rule(fault, p, match, times))

    def clear(self) -> None:
        """Stop injecting faults; what was seen and injected stays counted."""
        with self._lock:
            self._rules.clear()

    def _choose(self, request: Request) -> _Rule | None:
        """Return the fault that this request gets, and take it from what is left."""
        with self._lock:
            rule = next((rule for rule in self._rules if rule.fits(request) and self._dice.random() < rule.p), None)
            if rule is not None and rule.left is not None:
                rule.left -= 1
        return rule

    def _count(self, request: Request, status: int | None, rule: _Rule | None, *, broke: bool) -> None:
        """Note a request before its client learns the outcome; a fault that found nothing to break is given back."""
        with self._lock:
            if rule is not None and broke:
                self.injected[rule.fault] += 1
            elif rule is not None and rule.left is not None:
                rule.left += 1
            self.seen.append(Seen(request.action, status, rule.fault if rule is not None and broke else None))

    def _some(self, count: int) -> list[int]:
        """Return some of so many positions: at least one, and not all of them if there are two or more."""
        with self._lock:
            return self._dice.sample(range(count), self._dice.randint(1, max(1, count - 1)))


class _Server(ThreadingHTTPServer):
    """The server and its thread; `stop` ends all connections, those upstream too."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.proxy = proxy
        self.stopped = threading.Event()
        self.sockets: set[socket.socket] = set()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="fault-proxy", daemon=True)

    def stop(self) -> None:
        self.stopped.set()
        self.shutdown()
        self.thread.join()
        for each in list(self.sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that gave up is what proxies are for."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, with one connection upstream."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  # set by the one server

    def setup(self) -> None:
        super().setup()
        self.server.sockets.add(self.connection)
        self._upstream: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        self._disconnect()
        self.server.sockets.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def handle_expect_100(self) -> bool:
        told = super().handle_expect_100()
        self.wfile.flush()
        return told

    def do_any(self) -> None:
        request = Request(self.command, self.path, dict(self.headers.items()), self._body())
        rule = self.server.proxy._choose(request)
        kind, _, seconds = (rule.fault if rule else "").partition(":")
        answer = _MADE_HERE[kind](request) if kind in _MADE_HERE else self._acted(kind, request)
        broken = None if answer is None or kind == "drop_after_apply" else _broken(kind, answer)
        broke = broken != answer or kind not in ("truncate", "bad_md5", "reset_mid_body")
        self.server.proxy._count(request, broken.status if broken else None, rule, broke=broke)
        ended = kind == "hang" and self.server.stopped.wait(float(seconds))
        self._reply(None if ended else broken)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_any

    def _acted(self, kind: str, request: Request) -> Answer | None:
        """Return upstream's answer; None if it was not asked or the connection to it broke."""
        if kind == "drop_before":
            return None
        try:
            if kind == "partial_batch" and (batch := batch_of(request)) is not None:
                return batch.split(dict.fromkeys(self.server.proxy._some(len(batch.ids))), self._act)
            answer = self._act(request)
            if kind == "duplicate_request":
                self._act(request)
            return answer
        except ConnectionRefusedError:
            return refusal(request, 503, "ServiceUnavailable", f"{self.server.proxy.upstream} does not answer")
        except (OSError, http.client.HTTPException):
            self._disconnect()
            return None

    def _act(self, request: Request) -> Answer:
        rules = self.server.proxy._aws
        return self._forward(request) if rules is None else rules.answer(request, self._forward)

    def _forward(self, request: Request) -> Answer:
        connection = self._connected()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_THE_CONNECTION}
        base = urlsplit(self.server.proxy.upstream)
        connection.request(request.method, base.path + request.path, request.body, {**headers, "Host": base.netloc})
        response = connection.getresponse()
        body = response.read()
        if response.will_close:
            self._disconnect()
        kept = [(name, value) for name, value in response.getheaders() if name.lower() not in _OF_THE_CONNECTION]
        if request.method == "HEAD":
            kept.append(("Content-Length", response.headers.get("Content-Length", "0")))
        if "QueueUrl" in request.action or request.action in ("CreateQueue", "ListQueues"):
            # Some clients send to the URLs of queues in answers.
            own = f"http://127.0.0.1:{self.server.server_port}"
            body = body.replace(self.server.proxy.upstream.encode(), own.encode())
        return Answer(response.status, tuple(kept), body)

    def _connected(self) -> http.client.HTTPConnection:
        if self._upstream is not None and select.select([self._upstream.sock], [], [], 0)[0]:
            # Upstream has closed an idle connection. A request is never sent twice to find that out.
            self._disconnect()
        if self._upstream is None:
            base = urlsplit(self.server.proxy.upstream)
            kind = http.client.HTTPSConnection if base.scheme == "https" else http.client.HTTPConnection
            made = kind(base.netloc, timeout=_LONGEST_SECONDS)
            made.connect()
            made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.server.sockets.add(made.sock)
            self._upstream = made
        return self._upstream

    def _disconnect(self) -> None:
        if self._upstream is not None:
            self.server.sockets.discard(self._upstream.sock)
            self._upstream.close()
            self._upstream = None

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _reply(self, answer: Answer | None) -> None:
        """Send the answer; None cuts the connection."""
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer.body) + answer.missing))
        self.end_headers()
        self.wfile.write(answer.body)
        self.wfile.flush()
        if answer.missing:
            self.close_connection = True
            # With no time to linger, closing sends a reset instead of an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: `seen` has every request."""


def _denied(request: Request) -> str:
    return "AccessDeniedException" if request.is_json else "AccessDenied"


def _broken(kind: str, answer: Answer) -> Answer:
    half = len(answer.body) // 2
    if kind == "truncate":
        return replace(answer, body=answer.body[:half])
    if kind == "reset_mid_body":
        return replace(answer, body=answer.body[:half], missing=len(answer.body) - half)
    if kind == "bad_md5":
        body = _MD5.sub(rb"\g<1>" + b"0" * 32, answer.body)
        headers = tuple(
            (name, "AAAAAA==" if name.lower().startswith(_CHECKSUMS) else value) for name, value in answer.headers
        )
        return replace(answer, body=body, headers=headers)
    return answer
