"""`postroad outbox run`: a dispatcher as a process of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
import typer

from postroad.cli.call import Call, verb
from postroad.cli.output import write_json
from postroad.cli.parameters import OutboxOptions, duration, duration_option
from postroad.errors import ConfigurationError, InvalidInput
from postroad.settings import aws_place
from postroad.signals import stopped_by_signals

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry

    from postroad.outbox import OutboxDispatcher

_DRAIN_SECONDS = 86_400.0


def pauses(text: str) -> tuple[float, ...]:
    """Return seconds that are separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f'"{text}" is not a list of seconds such as 1,5,30') from None


@verb("outbox run", "--topic events-transfers.fifo --dsn sqlite:///app.db", until_stopped=True)
def run(
    call: Call,
    at: OutboxOptions,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME_OR_ARN", help="The topic to publish to ($SNS_ARN).")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="Rows per claim.")] = 50,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Calls at the same time.")] = 10,
    lease: Annotated[float | None, duration_option("How long a claim lasts (30s).")] = None,
    poll: Annotated[float | None, duration_option("How often to poll (1s).")] = None,
    retry_max: Annotated[int, typer.Option(metavar="N", help="Attempts before a row has failed.")] = 10,
    backoff: Annotated[
        Any,
        typer.Option(
            parser=pauses, metavar="SECONDS", help="Pauses between attempts, separated by commas (1,5,30,120,600,3600)."
        ),
    ] = None,
    policy: Annotated[
        Literal["block", "park", "skip"],
        typer.Option(metavar="POLICY", help="What happens to a key when a row fails: block, park or skip."),
    ] = "block",
    no_listen: Annotated[bool, typer.Option("--no-listen", help="Poll only, without LISTEN.")] = False,
    keep_sent: Annotated[str, typer.Option(metavar="DURATION", help="How long sent rows are kept, or forever.")] = "7d",
    keyfile: Annotated[Path | None, typer.Option(metavar="F", help="Keys of encrypted payloads.")] = None,
    service: Annotated[str | None, typer.Option(metavar="S", help="The label of the metrics (default).")] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, metavar="P", help="Serve /metrics, /health and /ready on this port."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address of that port; 0.0.0.0 is every interface.")
    ] = "127.0.0.1",
    cloudwatch: Annotated[bool, typer.Option("--cloudwatch", help="Send the metrics to CloudWatch.")] = False,
    create_topic: Annotated[
        bool, typer.Option("--create-topic", help="Create the topic if it does not exist.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Run one pass.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Run until nothing is due.")] = False,
) -> None:
    """Publish recorded events until SIGTERM, each key in the order of its commits, and print a report at the end."""
    if once and drain:
        raise InvalidInput("once: --once and --drain exclude each other", field="once", remedy="Give one of them.")
    settings = call.settings(logs=True)
    from prometheus_client import CollectorRegistry

    from postroad.outbox import DispatcherConfig, OutboxDispatcher
    from postroad.up.dispatcher import configured_topic, open_topic, store_of

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
    name = topic or configured_topic(settings)
    if name is None:
        remedy = "Give --topic, or set SNS_ARN, or topic in the table [outbox] of postroad.toml."
        raise ConfigurationError("topic: none is named", field="topic", remedy=remedy)
    reported_from = store_of(settings.url, name) if cloudwatch else None
    with (
        at.open(call, keyfile=keyfile) as outbox,
        open_topic(name, settings, create=create_topic, outbox=outbox) as target,
    ):
        dispatcher = OutboxDispatcher(
            outbox, target, config, service=service or settings.outbox_service, metrics=registry
        )
        with ExitStack() as stack:
            if metrics_port is not None:
                stack.enter_context(_served(dispatcher, registry, metrics_host, metrics_port))
            if reported_from is not None:
                stack.enter_context(_reported(registry, reported_from))
            stop = stack.enter_context(stopped_by_signals())
            if once:
                report = dispatcher.run_once()
            else:
                report = dispatcher.drain(_DRAIN_SECONDS, stop=stop) if drain else dispatcher.run(stop)
    write_json(asdict(report))


@contextmanager
def _served(dispatcher: OutboxDispatcher, registry: CollectorRegistry, host: str, port: int) -> Iterator[None]:
    """Answer /metrics, /health (it works) and /ready (the database answers and the target accepts messages)."""
    from prometheus_client import make_wsgi_app

    answers: dict[str, tuple[str, Callable[[], bool]]] = {
        "/health": ("healthy", lambda: dispatcher.healthy),
        "/ready": ("ready", lambda: dispatcher.ready),
    }
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] not in answers:
            return cast("Iterable[bytes]", metrics(environ, start_response))
        word, is_true = answers[environ["PATH_INFO"]]
        well = is_true()
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
            """Requests are not logged."""

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
    """Report metrics to the region of an AWS backend, or else to that of the environment."""
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
