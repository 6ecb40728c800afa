"""`postroad notifications worker|scaling|prune|show`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qs, quote, urlsplit

from postroad.cli.call import Call, verb
from postroad.cli.display import table, utc_text
from postroad.cli.packages import cli_probes, notifications, notifications_health, up_notifications
from postroad.cli.parameters import argument, duration_option, option
from postroad.errors import ConfigurationError
from postroad.settings import NotificationSettings, notification_settings
from postroad.signals import stopped_by_signals
from postroad.telemetry import counted, get_logger

_MOST_TASKS = 1_000_000


@verb("notifications worker", "--url aws://eu-central-1", until_stopped=True)
def worker(call: Call) -> None:
    """Store what offline users missed and push it to their devices until SIGTERM; the environment configures it."""
    settings = _settings()
    call.settings(logs=True)
    where = _where(call, settings)
    up_notifications.checked_database(where.settings().url, settings)
    with (
        stopped_by_signals() as stop,
        up_notifications.senders(settings) as given,
        cli_probes.ProbeServer(settings.health_host, settings.health_port, "variable HEALTH_PORT") as server,
        where.backend() as backend,
        up_notifications.notification_worker(backend, settings, given) as running,
    ):
        health = notifications.Health(
            running, notifications.Autoscaler(min_tasks=settings.min_tasks, max_tasks=settings.max_tasks)
        )
        with server.answering(partial(_respond, health)):
            where_to_ask = {"host": settings.health_host, "port": server.server_port}
            get_logger("notifications").info("notification_worker_started", **where_to_ask)
            running.run(stop)
    call.show({"stopped": True}, "stopped")


@verb("notifications scaling", "--current 0")
def scaling(
    call: Call,
    current: Annotated[int, option("N", "How many workers run now; 0 for none.", min=0, max=_MOST_TASKS)] = 1,
) -> None:
    """Show how many workers there should be, even if none runs; cooldowns are up to the caller."""
    settings = _settings()
    where = _where(call, settings)
    autoscaler = notifications.Autoscaler(min_tasks=settings.min_tasks, max_tasks=settings.max_tasks)
    with (
        where.backend() as backend,
        notifications.NotificationStore(up_notifications.checked_database(where.settings().url, settings)) as store,
    ):
        answer = notifications_health.scaling(
            up_notifications.named_queues(backend, settings), store, autoscaler, current=current, at=time.monotonic()
        )
    call.show(answer, f"{counted(answer['desired'], 'worker')}, now {current}")


@verb("notifications prune", "--keep-delivered 1h")
def prune(
    call: Call,
    keep_delivered: Annotated[float | None, duration_option("How long to keep delivered messages (1d).")] = None,
    keep_results: Annotated[float | None, duration_option("How long to keep the results of pushes (7d).")] = None,
    keep_undelivered: Annotated[float | None, duration_option("How long to keep undelivered messages (30d).")] = None,
) -> None:
    """Delete old messages, results and sent pushes, as a running worker does every minute."""
    settings = notification_settings()
    with notifications.NotificationStore(up_notifications.checked_database(call.settings().url, settings)) as store:
        pruned = store.prune(
            keep_delivered=settings.keep_delivered if keep_delivered is None else keep_delivered,
            keep_results=settings.keep_results if keep_results is None else keep_results,
            keep_undelivered=settings.keep_undelivered if keep_undelivered is None else keep_undelivered,
        )
    counts = pruned._asdict()
    call.show(counts, "pruned " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))


@verb("notifications show", "user-1")
def show(call: Call, user_id: Annotated[str, argument("USER", "The user's id.")]) -> None:
    """Show a user's devices, the messages that wait, and the results of the last pushes."""
    shown = notifications.configured_user(call.settings().url, user_id)
    devices = (
        (
            each.token_hash[:12],
            each.platform or "-",
            _at(each.registered_at),
            "gets pushes" if each.dropped_at is None else f"dropped {_at(each.dropped_at)}: {each.drop_reason}",
        )
        for each in shown.devices
    )
    pending = ((each.message_id, each.sender_id, _at(each.sent_at)) for each in shown.pending)
    results = (
        (_at(each.updated_at), each.push_id, each.token_hash[:12], each.outcome, each.reason or "-")
        for each in shown.results
    )
    waiting = f"{counted(shown.pending_total, 'message')} waiting"
    call.show(
        shown,
        table(["DEVICE", "PLATFORM", "REGISTERED", "STATE"], devices, "no devices"),
        waiting,
        *([table(["MESSAGE", "FROM", "SENT"], pending, "")] if shown.pending else []),
        table(["AT", "PUSH", "DEVICE", "OUTCOME", "REASON"], results, "no results of pushes"),
    )


def _at(moment: datetime) -> str:
    return utc_text(round(moment.timestamp() * 1_000))


def _settings() -> NotificationSettings:
    settings = notification_settings()
    if settings.idle:
        name = "SQS_PUSH_QUEUE_URL"
        raise ConfigurationError(
            f"variable {name}: neither it nor SQS_OFFLINE_QUEUE_URL is set",
            field=name,
            remedy="Name one of the queues, or both.",
        )
    return settings


def _where(call: Call, settings: NotificationSettings) -> Call:
    """Return the call with the backend of a queue's URL, unless a backend is named."""
    url = next(
        (each for each in (settings.push_queue, settings.offline_queue) if each is not None and "://" in each), None
    )
    if url is None or call.settings().source("url") != "default":
        return call
    place = urlsplit(url)
    host = place.hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return replace(call, url=f"aws://{settings.region or host.split('.')[1]}")
    endpoint = quote(f"{place.scheme}://{place.netloc}", safe="")
    return replace(call, url=f"aws://{settings.region or ''}?endpoint_url={endpoint}")


def _respond(health: notifications.Health, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    status, document = _answer(health, environ)
    return cli_probes.json_answer(start_response, status, document, head=environ["REQUEST_METHOD"] == "HEAD")


def _answer(health: notifications.Health, environ: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    path = environ["PATH_INFO"]
    if path not in ("/health", "/health/detailed", "/scaling"):
        return 404, {"status": "not found"}
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return 405, {"status": "method not allowed"}
    if path != "/scaling":
        return health.short() if path == "/health" else health.detailed()
    current = parse_qs(environ["QUERY_STRING"]).get("current", [""])[-1]
    valid = current.isascii() and current.isdecimal() and len(current) < 9
    return health.scaling(min(int(current), _MOST_TASKS) if valid else 1)
