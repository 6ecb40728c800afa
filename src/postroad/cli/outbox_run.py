"""`postroad outbox run`: a dispatcher as a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroad.cli.call import Call, verb
from postroad.cli.output import write_json
from postroad.cli.packages import cli_probes, connections_aws, connections_cloudwatch, outbox, up_dispatcher, wiring
from postroad.cli.parameters import OutboxOptions, duration, duration_option, flag, option
from postroad.errors import ConfigurationError, InvalidInput
from postroad.settings import aws_place
from postroad.signals import stopped_by_signals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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
    topic: Annotated[str | None, option("NAME_OR_ARN", "The topic to publish to ($SNS_ARN).")] = None,
    batch: Annotated[int, option("N", "Rows per claim.")] = 50,
    concurrency: Annotated[int, option("N", "Calls at the same time.")] = 10,
    lease: Annotated[float | None, duration_option("How long a claim lasts (30s).")] = None,
    poll: Annotated[float | None, duration_option("How often to poll (1s).")] = None,
    retry_max: Annotated[int, option("N", "Attempts before a row has failed.")] = 10,
    backoff: Annotated[
        Any, option("SECONDS", "Pauses between attempts, separated by commas (1,5,30,120,600,3600).", parser=pauses)
    ] = None,
    policy: Annotated[
        Literal["block", "park", "skip"], option("POLICY", "What happens to a key when a row fails.")
    ] = "block",
    no_listen: Annotated[bool, flag("--no-listen", "Poll only, without LISTEN.")] = False,
    keep_sent: Annotated[str, option("DURATION", "How long sent rows are kept, or forever.")] = "7d",
    keyfile: Annotated[Path | None, option("F", "Keys of encrypted payloads.")] = None,
    service: Annotated[str | None, option("S", "The label of the metrics (default).")] = None,
    metrics_port: Annotated[
        int | None, option("P", "Serve /metrics, /health and /ready on this port.", min=1, max=65_535)
    ] = None,
    metrics_host: Annotated[str, option("HOST", "The address of that port; 0.0.0.0 is every interface.")] = "127.0.0.1",
    cloudwatch: Annotated[bool, flag("--cloudwatch", "Send the metrics to CloudWatch.")] = False,
    create_topic: Annotated[bool, flag("--create-topic", "Create the topic if it does not exist.")] = False,
    once: Annotated[bool, flag("--once", "Run one pass.")] = False,
    drain: Annotated[bool, flag("--drain", "Run until nothing is due.")] = False,
) -> None:
    """Publish recorded events until SIGTERM, each key in the order of its commits, and print a report at the end."""
    if once and drain:
        raise InvalidInput("once: --once and --drain exclude each other", field="once", remedy="Give one of them.")
    settings = call.settings(logs=True)
    from prometheus_client import CollectorRegistry, make_wsgi_app

    given = {"lease": lease, "poll": poll, "backoff": backoff}
    config = outbox.DispatcherConfig(
        batch=batch,
        concurrency=concurrency,
        retry_max=retry_max,
        policy=policy,
        listen=not no_listen,
        keep_sent=None if keep_sent == "forever" else timedelta(seconds=duration(keep_sent)),
        **{name: value for name, value in given.items() if value is not None},
    )
    registry = CollectorRegistry()
    name = topic or up_dispatcher.configured_topic(settings)
    if name is None:
        remedy = "Give --topic, or set SNS_ARN, or topic in the table [outbox] of postroad.toml."
        raise ConfigurationError("topic: none is named", field="topic", remedy=remedy)
    reported_from = up_dispatcher.store_of(settings.url, name) if cloudwatch else None
    with (
        at.open(call, keyfile=keyfile) as source,
        up_dispatcher.open_topic(name, settings, create=create_topic, outbox=source) as target,
    ):
        dispatcher = outbox.OutboxDispatcher(
            source, target, config, service=service or settings.outbox_service, metrics=registry
        )
        with ExitStack() as stack:
            if metrics_port is not None:
                server = stack.enter_context(cli_probes.ProbeServer(metrics_host, metrics_port, "metrics_port"))
                stack.enter_context(server.answering(partial(_respond, dispatcher, make_wsgi_app(registry))))
            if reported_from is not None:
                stack.enter_context(_reported(registry, reported_from))
            stop = stack.enter_context(stopped_by_signals())
            if once:
                report = dispatcher.run_once()
            else:
                report = dispatcher.drain(_DRAIN_SECONDS, stop=stop) if drain else dispatcher.run(stop)
    write_json(report)


def _respond(
    dispatcher: outbox.OutboxDispatcher,
    metrics: cli_probes.App,
    environ: dict[str, Any],
    start_response: Callable[..., Any],
) -> Iterable[bytes]:
    """Answer /metrics, /health (it works) and /ready (the database answers, and the target accepts messages)."""
    if environ["PATH_INFO"] == "/health":
        well, word = dispatcher.healthy, "healthy"
    elif environ["PATH_INFO"] == "/ready":
        well, word = dispatcher.ready, "ready"
    else:
        return metrics(environ, start_response)
    return cli_probes.json_answer(start_response, 200 if well else 503, {"status": "ok" if well else f"not {word}"})


@contextmanager
def _reported(registry: CollectorRegistry, url: str) -> Iterator[None]:
    """Report metrics to the region of an AWS backend, or else to that of the environment."""
    address = wiring.parse_url(url)
    region = address.place if address.scheme == "aws" else ""
    connection = connections_aws.AwsConnection(region or aws_place()[0], address.options.get("endpoint_url"))
    try:
        with connections_cloudwatch.reporting(registry, connection):
            yield
    finally:
        connection.close()
