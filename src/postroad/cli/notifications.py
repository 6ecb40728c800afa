"""`postroad notifications worker|scaling|prune`, and the port on which a worker tells how it is."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import msgspec
import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.parameters import duration
from postroad.errors import ConfigurationError
from postroad.settings import NotificationSettings, no_color, notification_settings
from postroad.signals import stopped_by_signals
from postroad.telemetry import configure_logs, get_logger

if TYPE_CHECKING:
    from postroad.notifications import Health


_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_MOST_TASKS = 1_000_000


def add_to(app: typer.Typer) -> None:
    """Make the verbs part of `postroad notifications`."""
    add_verb(
        app, "worker", worker, example="postroad notifications worker --url aws://eu-central-1", until_stopped=True
    )
    add_verb(app, "scaling", scaling, example="postroad notifications scaling --current 0")
    add_verb(app, "prune", prune, example="postroad notifications prune --keep-delivered 1h")


def worker(call: Call) -> None:
    """Store what offline users missed and push it to their devices, as the environment says, until SIGTERM."""
    from postroad.cli.notifications import answering, listening
    from postroad.notifications import Autoscaler
    from postroad.notifications.health import Health
    from postroad.up.notifications import checked_database, notification_worker, senders

    settings = call.settings()
    told = _told()
    configure_logs(settings.log_level, settings.log_format, color=not no_color())
    where = _where(call, told)
    checked_database(where.settings().url, told)
    with (
        stopped_by_signals() as stop,
        senders(told) as given,
        closing(listening(told.health_host, told.health_port, field="HEALTH_PORT")) as listener,
        where.backend() as backend,
        notification_worker(backend, told, given) as running,
    ):
        health = Health(running, Autoscaler(min_tasks=told.min_tasks, max_tasks=told.max_tasks))
        with answering(listener, _answers(health)):
            port = listener.getsockname()[1]
            get_logger("notifications").info("notification_worker_started", host=told.health_host, port=port)
            running.run(stop)
    call.show({"stopped": True}, "stopped")


def scaling(
    call: Call,
    current: Annotated[
        int, typer.Option(min=0, max=_MOST_TASKS, metavar="N", help="How many workers there are; 0 to begin with none.")
    ] = 1,
) -> None:
    """Say how many workers there should be, also while none runs. Cooldowns are left to whoever asks."""
    from postroad.notifications import Autoscaler, NotificationStore, scaling as decide
    from postroad.up.notifications import checked_database, named_queues

    told = _told()
    where = _where(call, told)
    autoscaler = Autoscaler(min_tasks=told.min_tasks, max_tasks=told.max_tasks)
    with (
        where.backend() as backend,
        NotificationStore(checked_database(where.settings().url, told)) as store,
    ):
        answer = decide(named_queues(backend, told), store, autoscaler, current=current, at=time.monotonic())
    call.show(answer, f"{answer['desired']} worker{'' if answer['desired'] == 1 else 's'}, now {current}")


def prune(
    call: Call,
    keep_delivered: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Of messages that users have, and sent pushes (1d)."),
    ] = None,
    keep_results: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Of what became of pushes (7d).")
    ] = None,
    keep_undelivered: Annotated[
        float | None, typer.Option(parser=duration, metavar="DURATION", help="Of messages nobody came for (30d).")
    ] = None,
) -> None:
    """Delete old messages, results and sent pushes, as a running worker does every minute."""
    from postroad.notifications import NotificationStore
    from postroad.up.notifications import checked_database

    told = notification_settings()
    with NotificationStore(checked_database(call.settings().url, told)) as store:
        pruned = store.prune(
            keep_delivered=told.keep_delivered if keep_delivered is None else keep_delivered,
            keep_results=told.keep_results if keep_results is None else keep_results,
            keep_undelivered=told.keep_undelivered if keep_undelivered is None else keep_undelivered,
        )
    counts = pruned._asdict()
    call.show(counts, "pruned " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))


def _told() -> NotificationSettings:
    """What the environment says; ConfigurationError when it names no queue."""
    told = notification_settings()
    if told.idle:
        name = "SQS_PUSH_QUEUE_URL"
        raise ConfigurationError(
            f"variable {name}: neither it nor SQS_OFFLINE_QUEUE_URL is set",
            field=name,
            remedy="Name one of the queues, or both.",
        )
    return told


def _answers(health: Health) -> Answers:
    return {
        "/health": lambda query: health.short(),
        "/health/detailed": lambda query: health.detailed(),
        "/scaling": lambda query: health.scaling(_tasks(query)),
    }


def _tasks(query: Mapping[str, str]) -> int:
    """How many workers there are, as far as the caller says."""
    text = query.get("current", "")
    return min(int(text), _MOST_TASKS) if text.isascii() and text.isdecimal() and len(text) < 9 else 1


def _where(call: Call, told: NotificationSettings) -> Call:
    """A queue's URL tells where it is, unless a backend is named."""
    url = next((each for each in (told.push_queue, told.offline_queue) if each is not None and "://" in each), None)
    if url is None or call.settings().source("url") != "default":
        return call
    place = urlsplit(url)
    host = place.hostname or ""
    if host.endswith(_AMAZON):
        return replace(call, url=f"aws://{told.region or host.split('.')[1]}")
    endpoint = quote(f"{place.scheme}://{place.netloc}", safe="")
    return replace(call, url=f"aws://{told.region or ''}?endpoint_url={endpoint}")


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
            f"variable {field}: port {port} of {host} cannot be opened: {error.strerror or error}",
            field=field,
            remedy="Choose a free port.",
        ) from error


@contextmanager
def answering(listener: socket.socket, answers: Answers) -> Iterator[None]:
    """Answer on the socket while the block runs, on a thread of its own."""
    from postroad.http.app import make_server

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
