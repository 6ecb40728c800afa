"""A webhook on this machine that keeps what it receives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Answers every alert with `status`."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.status = 200
        self.length = 0
        """How long its answer is said to be; at most 64 KiB of it are sent, and then it waits."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(receiver.status)
                if receiver.status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(receiver.length))
                self.end_headers()
                self.wfile.write(b"x" * min(receiver.length, 65_536))
                if receiver.length > 65_536:
                    self.rfile.read(1)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/secret"


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A webhook for as long as the test needs it."""
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()
