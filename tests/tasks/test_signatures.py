"""The names and defaults that callers of tasks, jobs and health rely on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from postroad.jobs import JobDispatcher, Jobs
from postroad.journal import EventBridgeSender, tasks_by_state
from postroad.tasks import DeadLetterHandler, Reconciler, TaskHandle, TaskProducer, TaskWorker, ensure_queues
from postroad.tasks.health import HealthCheck, SlackAlerts
from postroad.tasks.registry import TaskDefinition

WHO: dict[str, Any] = {"tenant_id": None, "app": None}
DEFAULTS: dict[Callable[..., Any], dict[str, Any]] = {
    TaskProducer: {"queue": "tasks", **WHO, "registry": None, "journal": None, "outbox": None},
    TaskProducer.options: {"delay": None, "at": None, "request_id": None, "timeout": None, "within": None},
    TaskHandle.wait: {"timeout": None},
    TaskWorker: {
        "queue": "tasks",
        "imports": (),
        "registry": None,
        **WHO,
        "concurrency": 3,
        "wait": 20.0,
        "visibility_extension": 30.0,
        "extension_interval": 20.0,
        "timeout": 200.0,
        "kill_grace": 5.0,
        "max_attempts": 3,
        "retry_base": 1.0,
        "retry_cap": 30.0,
        "drain_timeout": 30.0,
        "pass_env": (),
        "max_output_bytes": 5_242_880,
        "child_reuse": 1,
        "unknown_grace": 600.0,
        "task_output": "log",
        "reload": False,
        "worker_id": None,
        "journal": None,
        "dead_letters": True,
        "publish_events": None,
    },
    TaskWorker.run: {"until_idle": False},
    DeadLetterHandler: {"queue": "tasks", **WHO, "journal": None},
    Reconciler: {"queue": "tasks", **WHO, "stale_after": 60.0},
    ensure_queues: {"queue": "tasks"},
    Jobs: {"queue": "tasks", **WHO, "registry": None, "journal": None},
    Jobs.submit_job: {"job_id": None, "request_id": None},
    Jobs.list_jobs: {"limit": 20, "cursor": None, "status": None},
    Jobs.graph: {"format": "text"},
    JobDispatcher: {"queue": "tasks", **WHO, "publish_events": None},
    HealthCheck: {
        **WHO,
        "heartbeat_max_age": 300,
        "alert_threshold": 600,
        "task_max_duration": 3600,
        "lookback": 86400,
        "alerts": None,
    },
    SlackAlerts: {
        "webhook_url": None,
        "allowed_hosts": ("hooks.slack.com",),
        "timeout": 5.0,
        "allow_loopback": False,
    },
    EventBridgeSender: {"app": None, "blobs": None, "retries": 3},
    tasks_by_state: {"app": None, "since": None},
}


@pytest.mark.parametrize("called", DEFAULTS, ids=lambda called: called.__qualname__)
def test_what_is_left_out_has_the_documented_default(called: Callable[..., Any]) -> None:
    parameters = inspect.signature(called).parameters.values()

    assert {
        parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
    } == DEFAULTS[called]


def test_a_task_without_options_leaves_everything_to_its_worker() -> None:
    plain = TaskDefinition(name="x", command=("true",))

    options = (plain.timeout, plain.max_attempts, plain.memory_limit, plain.pass_env, plain.fresh)
    assert options == (None, None, None, (), False)
