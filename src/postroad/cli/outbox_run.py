"""`postroad outbox run`: a dispatcher as a process of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
import typer

from postroad.cli.call import Call, add_verb
from postroad.cli.databases import Dsn, Schema, Table, opened
from postroad.cli.output import write_json
from postroad.cli.parameters import duration
from postroad.errors import ConfigurationError, InvalidInput, PostroadError, TopicNotFound
from postroad.settings import aws_place, no_color, sns_arn
from postroad.signals import stopped_by_signals
from postroad.telemetry import configure_logs, get_logger

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry

    from postroad.outbox import DispatchReport, OutboxDispatcher
    from postroad.settings import Settings
    from postroad.topics import Topic

_DRAIN_SECONDS = 86_400.0


def add_to(app: typer.Typer) -> None:
    """Make the verb part of `postroad outbox`."""
    add_verb(
        app,
        "run",
        run,
        example="postroad outbox run --topic events-transfers.fifo --dsn sqlite:///app.db",
        until_stopped=True,
    )


def pauses(text: str) -> tuple[float, ...]:
    """Seconds with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f'"{text}" is not a list of seconds such as 1,5,30') from None


def run(
    call: Call,
    topic: Annotated[str | None, typer.Option(metavar="NAME_OR_ARN", help="Where to, not $SNS_ARN.")] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="Rows of one claim.")] = 50,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Calls at once.")] = 10,
    lease: Annotated[
        float | None, typer.Option(parser=duration, metavar="S", help="How long a claim lasts (30s).")
    ] = None,
    poll: Annotated[float | None, typer.Option(parser=duration, metavar="S", help="How often to look (1s).")] = None,
    retry_max: Annotated[int, typer.Option(metavar="N", help="Attempts before a row is given up.")] = 10,
    backoff: Annotated[
        Any, typer.Option(parser=pauses, metavar="S,S,…", help="Pauses between attempts (1,5,30,120,600,3600).")
    ] = None,
    policy: Annotated[
        Literal["block", "park", "skip"], typer.Option(metavar="POLICY", help="A key whose row is given up.")
    ] = "block",
    no_listen: Annotated[bool, typer.Option("--no-listen", help="Poll only.")] = False,
    keep_sent: Annotated[str, typer.Option(metavar="DURATION", help="How long sent rows are kept, or forever.")] = "7d",
    keyfile: Annotated[Path | None, typer.Option(metavar="F", help="Keys of encrypted payloads.")] = None,
    service: Annotated[str, typer.Option(metavar="S", help="The label of the metrics.")] = "default",
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, metavar="P", help="Serve /metrics, /health and /ready on this port."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address of that port; 0.0.0.0 is every interface.")
    ] = "127.0.0.1",
    cloudwatch: Annotated[bool, typer.Option("--cloudwatch", help="Send the metrics to CloudWatch.")] = False,
    create_topic: Annotated[bool, typer.Option("--create-topic", help="Make the topic when it is missing.")] = False,
    once: Annotated[bool, typer.Option("--once", help="One pass.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Until nothing is due.")] = False,
    dsn: Dsn = None,
    table: Table = "outbox",
    schema: Schema = "public",
) -> None:
    """Publish what is recorded, key by key in the order of its commits, until SIGTERM; ends with a report."""
    if once and drain:
        raise InvalidInput("once: --once and --drain exclude each other", field="once", remedy="Give one of them.")
    settings = call.settings()
    configure_logs(settings.log_level, settings.log_format, color=not no_color())
    from prometheus_client import CollectorRegistry

    from postroad.outbox import DispatcherConfig, OutboxDispatcher

    given = {"lease": lease, "poll": poll, "backoff": backoff}
    config = DispatcherConfig(
        batch=batch,
        concurrency=concurrency,
        retry_max=retry_max,
        policy=policy,
        listen=not no_listen,
        keep_sent=None if keep_sent == "forever" else timedelta(seconds=duration(keep_sent)),
        **{name: value for name, value in given.items() if value is not None},
    )
    registry = CollectorRegistry()
    name = _named(topic)
    reported_from = _where(settings.url, name) if cloudwatch else None
    with (
        opened(dsn, table, schema, keyfile=keyfile) as outbox,
        topic_named(name, settings, create=create_topic) as target,
    ):
        dispatcher = OutboxDispatcher(outbox, target, config, service=service, metrics=registry)
        shown = _shown(dispatcher, registry, (metrics_host, metrics_port), reported_from)
        with shown, stopped_by_signals() as stop:
            report = _dispatch(dispatcher, stop, once=once, drain=drain)
    write_json(asdict(report))


@contextmanager
def topic_named(name: str, settings: Settings, *, create: bool = False) -> Iterator[Topic]:
    """The topic to publish to; one that does not exist is refused, and one without subscriptions is worth a warning."""
    from postroad.wiring import connect

    with connect(_where(settings.url, name), trail_keep=settings.trail_keep) as backend:
        try:
            topic = backend.topic(name, fifo=name.endswith(".fifo"), create=create)
        except TopicNotFound as error:
            error.remedy = "Name a topic that exists, or make this one with `postroad outbox run --create-topic`."
            raise
        # Who may publish and nothing else cannot look.
        with suppress(PostroadError):
            if not topic.subscriptions():
                get_logger("outbox").warning("outbox_no_receivers", topic=topic.name)
        yield topic


def _named(given: str | None) -> str:
    name = given or sns_arn()
    if name is None:
        raise ConfigurationError("topic: none is named", field="topic", remedy="Give --topic, or set SNS_ARN.")
    return name


def _where(url: str, topic: str) -> str:
    """The backend's address: an ARN tells that it is AWS and where; else $AWS_REGION does where no region is named."""
    is_arn = topic.startswith("arn:")
    named = url.removeprefix("aws://") if url.startswith("aws://") else None
    if (named is None and not is_arn) or (named and not named.startswith("?")):
        return url
    region = topic.split(":")[3] if is_arn and topic.count(":") >= 5 else ""
    return f"aws://{region or aws_place()[0]}{named or ''}"


def _dispatch(dispatcher: OutboxDispatcher, stop: threading.Event, *, once: bool, drain: bool) -> DispatchReport:
    if once:
        return dispatcher.run_once()
    return dispatcher.drain(_DRAIN_SECONDS, stop=stop) if drain else dispatcher.run(stop)


@contextmanager
def _shown(
    dispatcher: OutboxDispatcher, registry: CollectorRegistry, at: tuple[str, int | None], reported_from: str | None
) -> Iterator[None]:
    """Let Prometheus and CloudWatch see the metrics while the block runs."""
    with ExitStack() as stack:
        host, port = at
        if port is not None:
            stack.enter_context(_served(dispatcher, registry, host, port))
        if reported_from is not None:
            stack.enter_context(_reported(registry, reported_from))
        yield


@contextmanager
def _served(dispatcher: OutboxDispatcher, registry: CollectorRegistry, host: str, port: int) -> Iterator[None]:
    """Answer /metrics, /health (it works) and /ready (the database answers and the target takes messages)."""
    from prometheus_client import make_wsgi_app

    answers: dict[str, tuple[str, Callable[[], bool]]] = {
        "/health": ("healthy", lambda: dispatcher.healthy),
        "/ready": ("ready", lambda: dispatcher.ready),
    }
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] not in answers:
            return cast("Iterable[bytes]", metrics(environ, start_response))
        word, holds = answers[environ["PATH_INFO"]]
        well = holds()
        start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [msgspec.json.encode({"status": "ok" if well else f"not {word}"})]

    server = _server(host, port, app)
    thread = threading.Thread(target=server.serve_forever, name="postroad-outbox-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _server(host: str, port: int, app: Any) -> WSGIServer:
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Requests are no news."""

    try:
        return make_server(host.strip("[]"), port, app, Server, Quiet)
    except OSError as error:
        raise ConfigurationError(
            f"metrics_port: {port} of {host} cannot be opened: {error.strerror or error}",
            field="metrics_port",
            remedy="Choose a free port, and a --metrics-host that is an address of this machine.",
        ) from error


@contextmanager
def _reported(registry: CollectorRegistry, url: str) -> Iterator[None]:
    """Report to the region of an AWS backend, else to that of the environment."""
    from postroad.connections.aws import AwsConnection
    from postroad.connections.cloudwatch import reporting
    from postroad.wiring import parse_url

    address = parse_url(url)
    region = address.place if address.scheme == "aws" else ""
    connection = AwsConnection(region or aws_place()[0], address.options.get("endpoint_url"))
    try:
        with reporting(registry, connection):
            yield
    finally:
        connection.close()
