"""A proxy in front of PostgreSQL that cuts a connection at its COMMIT, before or after the server has applied it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from psycopg.conninfo import conninfo_to_dict


class CommitCutter:
    """Passes everything on; while `left` is above zero, each statement with the marker costs its connection."""

    def __init__(self, dsn: str, moment: Literal["before", "after"], marker: bytes) -> None:
        parts = conninfo_to_dict(dsn)
        self._server = f"{parts['host']}/.s.PGSQL.{parts.get('port', 5432)}"
        self._moment, self._marker = moment, marker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.left = 0
        self.cut = 0
        """How many connections were cut so far."""
        port = self._listener.getsockname()[1]
        self.dsn = f"postgresql://{parts['user']}@127.0.0.1:{port}/{parts['dbname']}?sslmode=disable&gssencmode=disable"
        self._run(self._accept)

    def close(self) -> None:
        """End all connections."""
        for sock in self._sockets:
            _shut(sock)
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _run(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args)  # type: ignore[arg-type]  # all are functions
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                server.connect(self._server)
                answered = threading.Event()
                self._run(self._requests, client, server, answered)
                self._run(self._answers, client, server, answered)

    def _requests(self, client: socket.socket, server: socket.socket, last: threading.Event) -> None:
        with suppress(OSError, ConnectionError):
            server.sendall(_startup(client))
            while True:
                message = _message(client)
                if self._marker in message and self._takes_one():
                    if self._moment == "before":
                        break
                    last.set()
                server.sendall(message)
        _shut(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, last: threading.Event) -> None:
        with suppress(OSError):
            while (data := server.recv(65_536)) and not last.is_set():
                client.sendall(data)
        _shut(client, server)

    def _takes_one(self) -> bool:
        with self._lock:
            if not self.left:
                return False
            self.left -= 1
            self.cut += 1
            return True


@contextmanager
def cutting_commits(
    dsn: str, moment: Literal["before", "after"], *, marker: bytes = b"COMMIT\0"
) -> Iterator[CommitCutter]:
    """Yield a proxy to the server of this DSN, which listens on a Unix socket and needs no password."""
    cutter = CommitCutter(dsn, moment, marker)
    try:
        yield cutter
    finally:
        cutter.close()


def _shut(*sockets: socket.socket) -> None:
    for sock in sockets:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _startup(client: socket.socket) -> bytes:
    head = _exactly(client, 4)
    return head + _exactly(client, struct.unpack("!I", head)[0] - 4)


def _message(client: socket.socket) -> bytes:
    head = _exactly(client, 5)
    return head + _exactly(client, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        chunk = sock.recv(count - len(found))
        if not chunk:
            raise ConnectionError("gone")
        found += chunk
    return found
