"""Health: are running tasks still heard of, and do they run for too long?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from postroad.arguments import check
from postroad.errors import ConfigurationError, PostroadError
from postroad.items import ABSENT
from postroad.journal import HEARTBEAT, STARTED, Journal, JournalEvent, TaskState, every_event, fold, task_history
from postroad.ports import Store
from postroad.tasks.alerts import AlertResult
from postroad.tasks.config import Lifetime
from postroad.tasks.log import tell
from postroad.tasks.queues import tenant_and_app

HEALTH_CHECK: Final = "Task Health Check"
HEALTHY, WARNING, CRITICAL, OVERTIME = "healthy", "warning", "critical", "overtime"
_ALERT_AGAIN_MS: Final = 900_000
_ALERTED_KEY: Final = "ALERTED#HEALTH#"


class Alerts(Protocol):
    """Where alerts go."""

    def send(self, text: str) -> AlertResult: ...


class HealthReport(msgspec.Struct, frozen=True):
    """How the running tasks are, counted and one by one."""

    summary: dict[str, int]
    tasks: list[dict[str, Any]]


class Limits(msgspec.Struct, frozen=True):
    """From when on a task is in doubt, in milliseconds."""

    warning: int = 300_000
    critical: int = 600_000
    overtime: int = 3_600_000


def classify_health(elapsed_ms: float, since_last_event_ms: float, limits: Limits = Limits()) -> str:  # noqa: B008  it is frozen
    """How a running task is: too long is too long, whatever its heartbeats say."""
    if elapsed_ms > limits.overtime:
        return OVERTIME
    if since_last_event_ms > limits.critical:
        return CRITICAL
    return WARNING if since_last_event_ms > limits.warning else HEALTHY


class HealthCheck:
    """Looks at the running tasks of one tenant's app."""

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
        alerts: Alerts | None = None,
    ) -> None:
        given = {
            "heartbeat_max_age": heartbeat_max_age,
            "alert_threshold": alert_threshold,
            "task_max_duration": task_max_duration,
            "lookback": lookback,
        }
        for name, seconds in given.items():
            check(seconds, Lifetime, name, ConfigurationError)
        who = tenant_and_app(tenant_id, app)
        self._tenant, self._app = who.tenant_id, who.app
        self._backend = backend
        self._journal: Journal = backend.journal()
        self._items = backend.items()
        warning, critical, overtime, self._lookback_ms = (int(seconds * 1_000) for seconds in given.values())
        self._limits = Limits(warning, critical, overtime)
        self._alerts = alerts

    def check(self, *, now: datetime | int | None = None) -> HealthReport:
        """Look at every running task, record what was seen and tell of what is wrong; a number is milliseconds."""
        moment = self._milliseconds(now)
        tasks = [entry for request_id in self._started(moment) if (entry := self._look(request_id, moment)) is not None]
        summary = {"totalProcessing": len(tasks)} | {
            health: sum(task["health"] == health for task in tasks) for health in (HEALTHY, WARNING, CRITICAL, OVERTIME)
        }
        self._record(summary, tasks, moment)
        self._alert(CRITICAL, [task for task in tasks if task["health"] in (CRITICAL, OVERTIME)], moment)
        self._alert(WARNING, [task for task in tasks if task["health"] == WARNING], moment)
        return HealthReport(summary, tasks)

    def check_single(self, request_id: str, *, now: datetime | int | None = None) -> dict[str, Any]:
        """How one task is, whether it runs or not."""
        return self._told(request_id, self._milliseconds(now))

    def _told(self, request_id: str, moment: int) -> dict[str, Any]:
        events = task_history(self._journal, self._tenant, request_id, raw=True)
        state = fold(events)
        if state is None:
            return {"requestId": request_id, "status": "not_found"}
        seen = _seen(events, state)
        elapsed = moment - seen.started_at
        since = moment - state.last_event_at
        runs = state.state == "processing"
        return {
            "requestId": request_id,
            "currentState": state.state,
            "health": classify_health(elapsed, moment - seen.last_at, self._limits) if runs else None,
            "elapsed": elapsed,
            "timeSinceLastEvent": moment - seen.last_at if runs else since,
            "lastEventType": seen.last_type if runs else state.last_event_type,
            "workerId": seen.worker_id,
            "lastActivity": seen.activity,
        }

    def _started(self, moment: int) -> list[str]:
        """The tasks that were started within the lookback, each once."""
        found = every_event(
            self._journal,
            "GSI6",
            tenant=self._tenant,
            app=self._app,
            event_type=STARTED,
            start=moment - self._lookback_ms,
            raw=True,
        )
        return list(dict.fromkeys(event.entity_id for event in found))

    def _look(self, request_id: str, moment: int) -> dict[str, Any] | None:
        """How a task is; None when it does not run any more."""
        told = self._told(request_id, moment)
        if told.get("currentState") != "processing":
            return None
        return {name: value for name, value in told.items() if name != "currentState" and value is not None}

    def _record(self, summary: dict[str, int], tasks: Sequence[dict[str, Any]], moment: int) -> None:
        event = JournalEvent.create(
            HEALTH_CHECK,
            tenant_id=self._tenant,
            entity_id=self._app,
            app=self._app,
            timestamp=moment,
            context={"source": "system", "environment": self._backend.stage, "origin": "health-check"},
            properties={"summary": summary, "tasks": list(tasks)},
        )
        (result,) = self._journal.append([event])
        if result.error is not None:
            raise result.error

    def _alert(self, kind: str, tasks: Sequence[dict[str, Any]], moment: int) -> None:
        """Tell of these tasks, unless just they were told of a short while ago."""
        if self._alerts is None or not tasks or not self._is_news(kind, tasks, moment):
            return
        result = self._alerts.send("\n".join(_lines(kind, tasks, self._app)))
        if not result.ok:
            tell("task_alert_failed", kind=kind, status=result.status, reason=result.reason)
            # Nobody has heard of it, so the next check tells again.
            with suppress(PostroadError):
                self._items.delete(self._alerted(kind))

    def _is_news(self, kind: str, tasks: Sequence[dict[str, Any]], moment: int) -> bool:
        """Whether this set was not told of within a quarter of an hour; whoever asks first tells."""
        key = self._alerted(kind)
        ids = sorted(task["requestId"] for task in tasks)
        item = self._items.get(key)
        if item is not None:
            at, before = msgspec.json.decode(item.value, type=tuple[int, list[str]])
            if before == ids and moment - at < _ALERT_AGAIN_MS:
                return False
        value = msgspec.json.encode((moment, ids))
        return self._items.put(key, value, expect=ABSENT if item is None else item.version).ok

    def _alerted(self, kind: str) -> str:
        return f"{self._tenant}/{_ALERTED_KEY}{self._app}#{kind}"

    def _milliseconds(self, now: datetime | int | None) -> int:
        if isinstance(now, int):
            return now
        return int((self._backend.clock.now() if now is None else now).timestamp() * 1_000)


class _Seen(msgspec.Struct, frozen=True):
    started_at: int
    last_at: int
    last_type: str
    worker_id: str | None
    activity: dict[str, Any] | None


def _seen(events: Sequence[JournalEvent], state: TaskState) -> _Seen:
    """What the events of the current run tell of its latest start and last sign of life."""
    mine = [event for event in events if event.properties.get("run", state.run) == state.run] or list(events)
    starts = [event for event in mine if event.event_type == STARTED]
    start = starts[-1] if starts else mine[0]
    signs = [event for event in mine if event.timestamp >= start.timestamp]
    last = signs[-1]
    return _Seen(
        started_at=start.timestamp,
        last_at=last.timestamp,
        last_type=last.event_type,
        worker_id=_latest(signs, "workerId"),
        activity=_latest([event for event in signs if event.event_type == HEARTBEAT], "lastActivity"),
    )


def _latest(events: Sequence[JournalEvent], name: str) -> Any:
    return next((event.properties[name] for event in reversed(events) if event.properties.get(name)), None)


def _lines(kind: str, tasks: Sequence[dict[str, Any]], app: str) -> Iterator[str]:
    sign = ":rotating_light:" if kind == CRITICAL else ":warning:"
    yield f"{sign} *{len(tasks)} tasks of {app} are {'critical or overtime' if kind == CRITICAL else 'silent'}*"
    for task in tasks[:20]:
        minutes, worker = task["elapsed"] // 60_000, task.get("workerId", "unknown")
        yield f"*{task['requestId']}* {task['health']}, running for {minutes} min, worker {worker}"
    if len(tasks) > 20:
        yield f"and {len(tasks) - 20} more"
