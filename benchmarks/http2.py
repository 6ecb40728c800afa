"""A small HTTP/2 server over TLS on loopback, in a thread or a process; tests build their stand-ins on it too."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from benchmarks.certificates import ADDRESS, Certificates

_DATA_OF_NO_STREAM = b"\x00\x00\x01\x00\x00\x00\x00\x00\x00x"
Instead = Literal["silence", "hold", "reset", "reset_stream", "goaway", "goaway_before", "garbage"]
EVERY_STREAM = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asked."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.headers[":path"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the caller is told, or what happens `instead`; with "hold" it is told when the server is asked to."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    instead: Instead | None = None


Answering = Callable[[Request], Reply]


class Http2Server:
    """Answers requests on loopback from a thread of its own, and counts its connections."""

    def __init__(
        self, certificates: Certificates, answer: Answering, *, streams: int = 100, window: int = 65_535
    ) -> None:
        self.connections = 0
        self._answer = answer
        self._streams = streams
        self._window = window
        self._context = certificates.server_context("h2")
        self._loop = asyncio.new_event_loop()
        self._open: set[_Connection] = set()
        self._ready = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._work, name="http2-server", daemon=True)

    @property
    def url(self) -> str:
        return f"https://{ADDRESS}:{self._port}"

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(20)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def hang_up(self) -> None:
        """End every connection without a word."""
        self._loop.call_soon_threadsafe(self._abort)

    def go_away(self, promised: int) -> None:
        """Say that of the requests held back only the first so many are answered, and nothing that comes later."""
        for each in list(self._open):
            self._loop.call_soon_threadsafe(each.go_away, promised)

    def answer_held(self) -> None:
        """Answer the requests held back that were promised an answer; end what was told to go away."""
        for each in list(self._open):
            self._loop.call_soon_threadsafe(each.answer_held)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = self._loop.create_server(self._connected, ADDRESS, 0, ssl=self._context)
        server = self._loop.run_until_complete(listening)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._abort_all())
        self._loop.close()

    def _abort(self) -> None:
        for each in list(self._open):
            each.transport.abort()

    async def _abort_all(self) -> None:
        self._abort()
        while self._open:
            await asyncio.sleep(0)

    def _connected(self) -> _Connection:
        self.connections += 1
        return _Connection(self._answer, self._streams, self._window, self._open)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, answer: Answering, streams: int, window: int, opened: set[_Connection]) -> None:
        self._answer = answer
        self._opened = opened
        self._state = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        allowed = {SettingCodes.MAX_CONCURRENT_STREAMS: streams, SettingCodes.INITIAL_WINDOW_SIZE: window}
        # Changed one by one, they would hold without having been told to the client.
        self._state.local_settings = Settings(client=False, initial_values=allowed)
        self._requests: dict[int, tuple[dict[str, str], bytearray]] = {}
        self._held: dict[int, Reply] = {}
        self._last_stream: int | None = None

    def go_away(self, promised: int) -> None:
        if not self._held:
            return
        streams = sorted(self._held)
        self._last_stream = ([0, *streams])[promised] if promised <= len(streams) else EVERY_STREAM
        self._held = {stream: self._held[stream] for stream in streams[:promised]}
        # Not by h2, which takes a GOAWAY for the end of the connection.
        self.transport.write(GoAwayFrame(0, last_stream_id=self._last_stream).serialize())

    def answer_held(self) -> None:
        for stream, reply in self._held.items():
            self._reply(stream, replace(reply, instead=None))
        self._held = {}
        self._flush()
        if self._last_stream is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._opened.add(self)
        self._state.initiate_connection()
        self._flush()

    def connection_lost(self, _: Exception | None) -> None:
        self._opened.discard(self)

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._state.receive_data(data):
                if not self.transport.is_closing():
                    self._seen(event)
        except ProtocolError:
            self._flush()
            self.transport.close()
            return
        self._flush()

    def _seen(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            headers: Any = event.headers
            self._requests[event.stream_id] = (dict(headers), bytearray())
        elif isinstance(event, DataReceived):
            self._requests[event.stream_id][1].extend(event.data)
            self._state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            headers, body = self._requests.pop(event.stream_id)
            if self._last_stream is not None and event.stream_id > self._last_stream:
                return
            self._reply(event.stream_id, self._answer(Request(headers, bytes(body))))
        elif isinstance(event, StreamReset):
            self._requests.pop(event.stream_id, None)
        elif isinstance(event, ConnectionTerminated):
            self.transport.close()

    def _reply(self, stream: int, reply: Reply) -> None:
        if reply.instead == "hold":
            self._held[stream] = reply
            return
        if reply.instead is not None:
            self._do(stream, reply.instead)
            return
        headers = [(":status", str(reply.status)), *reply.headers.items()]
        self._state.send_headers(stream, headers, end_stream=not reply.body)
        if reply.body:
            self._state.send_data(stream, reply.body, end_stream=True)

    def _do(self, stream: int, instead: Instead) -> None:
        if instead == "reset":
            self.transport.abort()
        elif instead == "reset_stream":
            self._state.reset_stream(stream, ErrorCodes.REFUSED_STREAM)
        elif instead == "garbage":
            self.transport.write(_DATA_OF_NO_STREAM)
        elif instead != "silence":
            last = stream if instead == "goaway" else max(0, stream - 2)
            self._state.close_connection(ErrorCodes.NO_ERROR, last_stream_id=last)
            self._flush()
            self.transport.close()

    def _flush(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._state.data_to_send())


@contextmanager
def running(certificates: Certificates) -> Iterator[str]:
    """The address of a server in a process of its own; its answer's `apns-id` is the number of its connections."""
    files = [str(path) for path in (certificates.ca_file, certificates.chain, certificates.key)]
    command = [sys.executable, "-m", "benchmarks.http2", *files]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def _main(files: list[str]) -> None:
    server = Http2Server(
        Certificates(*map(Path, files)), lambda _: Reply(200, {"apns-id": str(server.connections)}), streams=1_000
    )
    server.start()
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    _main(sys.argv[1:])
