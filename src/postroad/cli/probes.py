"""The port on which a long-running command answers probes and Prometheus; the standard library is all it needs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec

from postroad.errors import ConfigurationError

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""An application of WSGI (PEP 3333)."""
_POLL_SECONDS = 0.1


class ProbeServer(ThreadingMixIn, WSGIServer):
    """A server that answers each request on a thread of its own; `setting` names what chose the port, for errors."""

    daemon_threads = True

    def __init__(self, host: str, port: int, setting: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host.strip("[]"), port), _Quiet)
        except OSError as error:
            raise ConfigurationError(
                f"{setting}: port {port} of {host} cannot be opened: {error.strerror or error}",
                field=setting.rpartition(" ")[2],
                remedy="Choose a free port, and a host that is an address of this machine.",
            ) from error

    @contextmanager
    def answering(self, app: App) -> Iterator[None]:
        self.set_app(app)
        thread = threading.Thread(target=self.serve_forever, args=(_POLL_SECONDS,), name="postroad-probes", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def json_answer(start_response: Callable[..., Any], status: int, document: Any, *, head: bool = False) -> list[bytes]:
    """Begin an answer and return its body, which a request for the head alone does not get."""
    body = msgspec.json.encode(document)
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return [] if head else [body]
