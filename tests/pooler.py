"""A minimal pooler in front of PostgreSQL: each transaction gets a connection from a pool."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from psycopg.conninfo import conninfo_to_dict

_SSL_REQUEST = 80_877_103
_READY = b"Z"
_ENDS_A_REQUEST = (b"Q", b"S")
_TERMINATE = b"X"
_HANGS = 20.0
Message = tuple[bytes, bytes]


@contextmanager
def pooler(dsn: str, *, size: int) -> Iterator[str]:
    """Yield the DSN of a pooler with `size` connections to the server of this DSN, which needs no password."""
    pool: queue.LifoQueue[socket.socket] = queue.LifoQueue()
    greeting: list[Message] = []
    for _ in range(size):
        server, greeting = _server(dsn)
        pool.put(server)
    listener = socket.create_server(("127.0.0.1", 0))
    clients: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                clients.append(client)
                threads.append(threading.Thread(target=_serve, args=(client, pool, greeting)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        parts = conninfo_to_dict(dsn)
        port = listener.getsockname()[1]
        yield f"postgresql://{parts['user']}@127.0.0.1:{port}/{parts['dbname']}?sslmode=disable&gssencmode=disable"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        for sock in clients:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in (acceptor, *threads):
            thread.join()
        for sock in (listener, *clients, *(pool.get() for _ in range(pool.qsize()))):
            sock.close()


def _server(dsn: str) -> tuple[socket.socket, list[Message]]:
    """Return a connection that is ready for a transaction, and the server's messages at its start."""
    parts = conninfo_to_dict(dsn)
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{parts['host']}/.s.PGSQL.{parts.get('port', 5432)}")
    options = f"user\0{parts['user']}\0database\0{parts['dbname']}\0\0".encode()
    server.sendall(struct.pack("!II", len(options) + 8, 196_608) + options)
    greeting: list[Message] = []
    while not greeting or greeting[-1][0] != _READY:
        greeting.append(_read(server))
    return server, greeting


def _serve(client: socket.socket, pool: queue.LifoQueue[socket.socket], greeting: list[Message]) -> None:
    with suppress(OSError, ConnectionError):
        _accept_startup(client)
        for message in greeting:
            _write(client, message)
        while True:
            first = _read(client)
            if first[0] == _TERMINATE:
                return
            server = pool.get(timeout=_HANGS)
            try:
                _transaction(client, server, first)
            finally:
                pool.put(server)


def _transaction(client: socket.socket, server: socket.socket, message: Message) -> None:
    """Pass messages between client and server until the transaction has ended."""
    while True:
        _write(server, message)
        if message[0] in _ENDS_A_REQUEST:
            answer = _read(server)
            while answer[0] != _READY:
                _write(client, answer)
                answer = _read(server)
            _write(client, answer)
            if answer[1] == b"I":
                return
        message = _read(client)


def _accept_startup(client: socket.socket) -> None:
    [length] = struct.unpack("!I", _exactly(client, 4))
    [protocol] = struct.unpack("!I", _exactly(client, 4))
    _exactly(client, length - 8)
    if protocol == _SSL_REQUEST:
        client.sendall(b"N")
        _accept_startup(client)


def _read(sock: socket.socket) -> Message:
    kind, length = struct.unpack("!cI", _exactly(sock, 5))
    return kind, _exactly(sock, length - 4)


def _write(sock: socket.socket, message: Message) -> None:
    sock.sendall(message[0] + struct.pack("!I", len(message[1]) + 4) + message[1])


def _exactly(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        chunk = sock.recv(count - len(found))
        if not chunk:
            raise ConnectionError("gone")
        found += chunk
    return found
