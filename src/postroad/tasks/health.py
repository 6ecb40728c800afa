"""The health of running tasks: which of them are silent or run too long, and the alerts to Slack about them."""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from postroad import journal
from postroad.arguments import check
from postroad.errors import AlertRefused, ConfigurationError, PostroadError
from postroad.items import ABSENT
from postroad.journal import HEARTBEAT, STARTED, Journal, JournalEvent
from postroad.ports import Store
from postroad.settings import alerts_allow_loopback, slack_webhook_url
from postroad.tasks.messages import log_event, tenant_and_app
from postroad.tasks.registry import Lifetime
from postroad.tasks.threads import Role
from postroad.telemetry import counted

HEALTH_CHECK: Final = "Task Health Check"
HEALTHY, WARNING, CRITICAL, OVERTIME = "healthy", "warning", "critical", "overtime"
_ALERT_AGAIN_MS: Final = 900_000
_ALERTED_KEY: Final = "ALERTED#HEALTH#"
_CHECKED_KEY: Final = "CHECKED#HEALTH#"
_CHECK_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 60.0
_NAMED: Final = 5


class HealthReport(msgspec.Struct, frozen=True):
    """The running tasks: how many are in which health, and each of them."""

    summary: dict[str, int]
    tasks: list[dict[str, Any]]


class Limits(msgspec.Struct, frozen=True):
    """The limits of a healthy task, in milliseconds."""

    warning: int = 300_000
    critical: int = 600_000
    overtime: int = 3_600_000


def classify_health(elapsed_ms: float, since_last_event_ms: float, limits: Limits = Limits()) -> str:  # noqa: B008  it is frozen
    """Return the health of a running task; a task that runs too long is `overtime`, whatever its heartbeats say."""
    if elapsed_ms > limits.overtime:
        return OVERTIME
    if since_last_event_ms > limits.critical:
        return CRITICAL
    return WARNING if since_last_event_ms > limits.warning else HEALTHY


class HealthCheck:
    """Checks the running tasks of one tenant's app.

    Args:
        backend: The store, as `connect()` returns it.
        tenant_id: The tenant of the tasks; by default that of the settings.
        app: The app of the tasks; by default that of the settings.
        heartbeat_max_age: Seconds since the last event after which a task is in `warning`; 300 by default. It should
            be several times the worker's `extension_interval`.
        alert_threshold: Seconds since the last event after which a task is `critical`; 600 by default.
        task_max_duration: Seconds after which a running task is `overtime`; 3,600 by default.
        lookback: Seconds within which a task must have started to be examined; 86,400 by default.
        alerts: Where to send alerts; by default none are sent.

    Raises:
        ConfigurationError: A number of seconds is out of its bounds.

    Example:
        report = HealthCheck(backend, alerts=SlackAlerts()).check()
    """

    def __init__(
        self,
        backend: Store,
        *,
        tenant_id: str | None = None,
        app: str | None = None,
        heartbeat_max_age: float = 300,
        alert_threshold: float = 600,
        task_max_duration: float = 3_600,
        lookback: float = 86_400,
        alerts: SlackAlerts | None = None,
    ) -> None:
        given = {
            "heartbeat_max_age": heartbeat_max_age,
            "alert_threshold": alert_threshold,
            "task_max_duration": task_max_duration,
            "lookback": lookback,
        }
        for name, seconds in given.items():
            check(seconds, Lifetime, name, ConfigurationError)
        self._tenant, self._app = tenant_and_app(tenant_id, app)
        self._backend = backend
        self._journal: Journal = backend.journal()
        self._items = backend.items()
        warning, critical, overtime, self._lookback_ms = (int(seconds * 1_000) for seconds in given.values())
        self._limits = Limits(warning, critical, overtime)
        self._alerts = alerts

    def check(self, *, now: datetime | int | None = None) -> HealthReport:
        """Check every running task, record the result and send alerts. `now` as a number is in milliseconds."""
        moment = self._milliseconds(now)
        report = self.look(now=moment)
        event = JournalEvent.create(
            HEALTH_CHECK,
            tenant_id=self._tenant,
            entity_id=self._app,
            app=self._app,
            timestamp=moment,
            context={"source": "system", "environment": self._backend.stage, "origin": "health-check"},
            properties={"summary": report.summary, "tasks": report.tasks},
        )
        (result,) = self._journal.append([event])
        if result.error is not None:
            raise result.error
        self._alert(CRITICAL, [task for task in report.tasks if task["health"] in (CRITICAL, OVERTIME)], moment)
        self._alert(WARNING, [task for task in report.tasks if task["health"] == WARNING], moment)
        return report

    def look(self, *, now: datetime | int | None = None, limit: int | None = None) -> HealthReport:
        """Examine every running task, or at most `limit` of them; nothing is recorded and nobody is alerted."""
        moment = self._milliseconds(now)
        found = [self.check_single(each, now=moment) for each in islice(self._started(moment, limit), limit)]
        tasks = [
            {name: value for name, value in task.items() if name != "currentState" and value is not None}
            for task in found
            if task.get("currentState") == "processing"
        ]
        summary = {"totalProcessing": len(tasks)} | {
            health: sum(task["health"] == health for task in tasks) for health in (HEALTHY, WARNING, CRITICAL, OVERTIME)
        }
        return HealthReport(summary, tasks)

    def _started(self, moment: int, limit: int | None) -> Iterator[str]:
        """Yield the tasks of the app that may be running: they have started lately and, if known, not ended."""
        kept, since = None, moment - self._lookback_ms
        asked: dict[str, Any] = {"tenant": self._tenant, "app": self._app, "event_type": STARTED, "start": since}
        if isinstance(self._journal, journal.StoredJournal):
            kept = self._journal.states(self._tenant, app=None, since=None, state="processing")
        if kept is None:
            events: Iterable[JournalEvent] = journal.every_event(self._journal, "GSI6", **asked, raw=True)
            if limit is not None:
                events = self._journal.query("GSI6", **asked, descending=True, limit=limit, raw=True).events
            yield from dict.fromkeys(event.entity_id for event in events)
        for request_id, _ in kept or ():
            if self._journal.query("GSI7", **asked, entity=("TASK", request_id), limit=1, raw=True).events:
                yield request_id

    def is_due(self, every: float) -> bool:
        """Return whether the last check is so many seconds ago; true for one process only, which then has to check."""
        key, now = f"{self._tenant}/{_CHECKED_KEY}{self._app}", self._milliseconds(None)
        return self._claim(key, now, lambda before: now - before < every * 1_000)

    def _claim(self, key: str, value: Any, is_fresh: Callable[[Any], bool]) -> bool:
        """Store the value unless what is stored is fresh; return whether it was stored, by one process only."""
        item = self._items.get(key)
        if item is not None and is_fresh(msgspec.json.decode(item.value)):
            return False
        return self._items.put(key, msgspec.json.encode(value), expect=ABSENT if item is None else item.version).ok

    def check_single(self, request_id: str, *, now: datetime | int | None = None) -> dict[str, Any]:
        """Return the health of one task, whether it runs or not."""
        moment = self._milliseconds(now)
        events = journal.task_history(self._journal, self._tenant, request_id, raw=True)
        state = journal.fold(events)
        if state is None:
            return {"requestId": request_id, "status": "not_found"}
        # The latest start of the current run, and its signs of life since then.
        mine = [event for event in events if event.properties.get("run", state.run) == state.run] or events
        start = next((event for event in reversed(mine) if event.event_type == STARTED), mine[0])
        signs = [event for event in mine if event.timestamp >= start.timestamp]
        elapsed, since_sign = moment - start.timestamp, moment - signs[-1].timestamp
        retry_at = signs[-1].properties.get("retryAt") if signs[-1].event_type == journal.ATTEMPT_FAILED else None
        if retry_at is not None:
            # It waits for its next attempt, and does not run.
            elapsed = since_sign = max(0, moment - retry_at)
        runs = state.state == "processing"
        return {
            "requestId": request_id,
            "currentState": state.state,
            "health": classify_health(elapsed, since_sign, self._limits) if runs else None,
            "elapsed": elapsed,
            "timeSinceLastEvent": since_sign if runs else moment - state.last_event_at,
            "lastEventType": signs[-1].event_type if runs else state.last_event_type,
            "workerId": _latest(signs, "workerId"),
            "lastActivity": _latest([event for event in signs if event.event_type == HEARTBEAT], "lastActivity"),
        }

    def _alert(self, kind: str, tasks: Sequence[dict[str, Any]], moment: int) -> None:
        """Send an alert about these tasks, unless the same tasks were reported a short while ago."""
        key = f"{self._tenant}/{_ALERTED_KEY}{self._app}#{kind}"
        ids = sorted(task["requestId"] for task in tasks)

        def is_known(before: tuple[int, list[str]]) -> bool:
            return before[1] == ids and moment - before[0] < _ALERT_AGAIN_MS

        if self._alerts is None or not tasks or not self._claim(key, (moment, ids), is_known):
            return
        result = self._alerts.send("\n".join(_lines(kind, tasks, self._app)))
        if not result.ok:
            log_event("task_alert_failed", kind=kind, status=result.status, reason=result.reason)
            # The alert was not received, so the next check sends it again.
            with suppress(PostroadError):
                self._items.delete(key)

    def _milliseconds(self, now: datetime | int | None) -> int:
        if isinstance(now, int):
            return now
        return int((self._backend.clock.now() if now is None else now).timestamp() * 1_000)


def health_role(backend: Store, *, tenant_id: str | None = None, app: str | None = None) -> Role:
    """Return the role that checks the running tasks every five minutes, in one process of all that have it.

    It logs which tasks are silent or run too long, and reports them to Slack if SLACK_WEBHOOK_URL is set.

    Raises:
        AlertRefused: SLACK_WEBHOOK_URL is not an address that alerts may be sent to.
    """
    alerts = None if slack_webhook_url() is None else SlackAlerts()
    health = HealthCheck(backend, tenant_id=tenant_id, app=app, alerts=alerts)

    def run_once() -> int:
        if health.is_due(_CHECK_SECONDS):
            report = health.check()
            bad = [task["requestId"] for task in report.tasks if task["health"] != HEALTHY]
            if bad:
                counts = {name: report.summary[name] for name in (WARNING, CRITICAL, OVERTIME)}
                log_event("tasks_unhealthy", **counts, request_ids=bad[:_NAMED])
        # It never finds work for a worker that runs until nothing is left to do.
        return 0

    return Role("health", _LOOK_SECONDS, run_once)


def _latest(events: Sequence[JournalEvent], name: str) -> Any:
    return next((event.properties[name] for event in reversed(events) if event.properties.get(name)), None)


def _lines(kind: str, tasks: Sequence[dict[str, Any]], app: str) -> Iterator[str]:
    sign = ":rotating_light:" if kind == CRITICAL else ":warning:"
    yield f"{sign} *{counted(len(tasks), 'task')} of {app} {'critical or overtime' if kind == CRITICAL else 'silent'}*"
    for task in tasks[:20]:
        minutes, worker = task["elapsed"] // 60_000, task.get("workerId", "unknown")
        yield f"*{task['requestId']}* {task['health']}, running for {minutes} min, worker {worker}"
    if len(tasks) > 20:
        yield f"and {len(tasks) - 20} more"


_LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PRINTABLE = re.compile(r"[!-~]{1,2000}")


def check_webhook(url: object, *, allowed_hosts: Collection[str], allow_loopback: bool) -> SplitResult:
    """Return the parts of the address, or raise `AlertRefused` without repeating it: who knows it can post."""
    if not isinstance(url, str) or _PRINTABLE.fullmatch(url) is None:
        raise AlertRefused("webhook_url: is not an address", field="webhook_url")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AlertRefused("webhook_url: its host or port is not valid", field="webhook_url") from None
    if port == 0:
        raise AlertRefused("webhook_url: its port is not valid", field="webhook_url")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise AlertRefused("webhook_url: names a user, which can disguise another host")
    host = parts.hostname or ""
    if allow_loopback and parts.scheme == "http" and host == _LOOPBACK:
        return parts
    if parts.scheme != "https":
        raise AlertRefused("webhook_url: is not https", field="webhook_url")
    if _HOST.fullmatch(host) is None or host not in allowed_hosts:
        raise AlertRefused("webhook_url: its host is not one of the allowed hosts", field="webhook_url")
    return parts


def _public_address(host: str, port: int) -> str:
    """Return the address to connect to; raise `OSError` if there is none, or one that is not public."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    # All of them: a name that also resolves to a private address is not trusted.
    if not addresses or not all(ipaddress.ip_address(address).is_global for address in addresses):
        raise OSError("the host has no public address")
    return addresses[0]


ALLOWED_HOSTS = ("hooks.slack.com",)
_MOST_BYTES = 65_536
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class AlertResult(msgspec.Struct, frozen=True):
    """Whether the alert was accepted, the HTTP status, and why it was not accepted."""

    ok: bool
    status: int | None = None
    reason: str | None = None


class SlackAlerts:
    """Sends text to a webhook of Slack, to one checked address, without redirects and proxies.

    Args:
        webhook_url: The address of the webhook; by default SLACK_WEBHOOK_URL.
        allowed_hosts: The hosts it may name; hooks.slack.com by default.
        timeout: Seconds for each step of the request; 5 by default.
        allow_loopback: Whether http://127.0.0.1 is allowed, for tests.

    Raises:
        AlertRefused: There is no address, or it is not allowed.

    Example:
        SlackAlerts().send("the nightly import failed")
    """

    def __init__(
        self,
        webhook_url: str | None = None,
        *,
        allowed_hosts: Collection[str] = ALLOWED_HOSTS,
        timeout: float = 5.0,
        allow_loopback: bool = False,
    ) -> None:
        url = webhook_url or slack_webhook_url()
        if url is None:
            raise AlertRefused("webhook_url: none is given", field="webhook_url", remedy="Set SLACK_WEBHOOK_URL.")
        loopback = allow_loopback or alerts_allow_loopback()
        self._webhook = check_webhook(url, allowed_hosts=allowed_hosts, allow_loopback=loopback)
        self._timeout = timeout

    def send(self, text: str) -> AlertResult:
        """Send the text; an error is returned in the result, which never holds the address."""
        body = json.dumps({"text": text.translate(_ESCAPES)}).encode()
        try:
            status = _post(self._webhook, body, self._timeout)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            return AlertResult(False, None, reason)
        ok = 200 <= status < 300
        return AlertResult(ok, status, None if ok else f"the receiver answered {status}")


def _post(webhook: SplitResult, body: bytes, timeout: float) -> int:
    """Post to the address that was checked, without a second lookup of the name."""
    host, secure = str(webhook.hostname), webhook.scheme == "https"
    port = webhook.port or (443 if secure else 80)
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    plain = socket.create_connection((_public_address(host, port) if secure else host, port), timeout)
    try:
        connection.sock = plain
        if secure:
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        path = (webhook.path or "/") + (f"?{webhook.query}" if webhook.query else "")
        connection.request("POST", path, body, {"Content-Type": "application/json", "Connection": "close"})
        answer = connection.getresponse()
        answer.read(_MOST_BYTES)
        return answer.status
    finally:
        connection.close()
        plain.close()
