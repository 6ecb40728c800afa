"""A small HTTPS server on loopback that speaks HTTP/1.1, with the same requests and replies as the HTTP/2 one."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.certificates import ADDRESS, Certificates
from benchmarks.http2 import Answering, Reply, Request


class HttpsServer:
    """Answers requests on loopback from threads of its own."""

    def __init__(self, certificates: Certificates, answer: Answering) -> None:
        self._context = certificates.server_context("http/1.1")
        self._server = _Server((ADDRESS, 0), _handler(answer), self._context)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"https://{ADDRESS}:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.hang_up()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Shakes hands in the thread of the connection, and ends its connections when it ends."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, address: tuple[str, int], handler: Any, context: ssl.SSLContext) -> None:
        super().__init__(address, handler)
        self._context = context
        self._connections: set[socket.socket] = set()
        self.ended = threading.Event()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError), self._context.wrap_socket(request, server_side=True) as secured:
            self._connections.add(secured)
            super().finish_request(secured, client_address)

    def hang_up(self) -> None:
        self.ended.set()
        for each in list(self._connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _handler(answer: Answering) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        server: _Server

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._reply(answer(Request({**headers, ":path": self.path, ":method": "POST"}, body)))

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

        def _reply(self, reply: Reply) -> None:
            if reply.instead is not None:
                self.close_connection = True
                if reply.instead == "silence":
                    self.server.ended.wait(120)
                return
            self.send_response(reply.status)
            for name, value in {**reply.headers, "content-length": str(len(reply.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

    return Handler
