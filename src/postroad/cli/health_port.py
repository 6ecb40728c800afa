"""A port on which a worker tells how it is: a few paths that answer in JSON, and nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from postroad.errors import ConfigurationError

Answer = tuple[int, dict[str, Any]]
Answers = Mapping[str, Callable[[Mapping[str, str]], Answer]]
"""What to answer, by path; an answer may look at the query."""
_NOT_FOUND: Answer = (404, {"status": "not found"})
_NOT_ALLOWED: Answer = (405, {"status": "method not allowed"})


def listening(host: str, port: int, *, field: str) -> socket.socket:
    """A socket that takes connections; ConfigurationError names the variable when there can be none."""
    if importlib.util.find_spec("uvicorn") is None:
        raise ConfigurationError(
            "the HTTP server is not installed", field=field, remedy="Run: pip install 'postroad[http]'"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"variable {field}: port {port} of {host} cannot be opened: {error.strerror or error}", field=field,
            remedy="Choose a free port.",
        ) from error  # fmt: skip


@contextmanager
def answering(listener: socket.socket, answers: Answers) -> Iterator[None]:
    """Answer on the socket while the block runs, on a thread of its own."""
    from postroad.http.serving import make_server

    server = make_server(_app(answers))
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), name="postroad-health", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _app(answers: Answers) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        status, document = await asyncio.to_thread(_answer, answers, scope)
        body = msgspec.json.encode(document)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app


def _answer(answers: Answers, scope: Any) -> Answer:
    answer = answers.get(scope["path"])
    if answer is None:
        return _NOT_FOUND
    if scope["method"] not in ("GET", "HEAD"):
        return _NOT_ALLOWED
    pairs = (pair.partition("=") for pair in scope["query_string"].decode("ascii", "replace").split("&"))
    return answer({name: value for name, _, value in pairs})
