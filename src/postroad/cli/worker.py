"""`postroad worker`: run tasks, and the roles around them."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

from postroad.cli.call import Call, verb
from postroad.cli.packages import jobs_dispatcher, tasks, tasks_threads, up_runners, wiring
from postroad.cli.parameters import duration_option, flag, option
from postroad.errors import ConfigurationError
from postroad.settings import Settings
from postroad.signals import heard_by

TASKS = "tasks"
SCHEDULER = "scheduler"
ROLES = (TASKS, "dispatcher", "dlq", "reconciler", SCHEDULER, "health", "events")


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """The options that a worker passes on; without a value, the worker's default applies."""

    timeout: Annotated[float | None, duration_option("How long a task may take (200s).")] = None
    max_attempts: Annotated[int | None, option("N", "Attempts per task (3).")] = None
    visibility_extension: Annotated[float | None, duration_option("How long an extended lease lasts (30s).")] = None
    extension_interval: Annotated[float | None, duration_option("How often a lease is extended (20s).")] = None
    drain_timeout: Annotated[float | None, duration_option("How long running tasks may take to finish (30s).")] = None
    retry_base: Annotated[float | None, duration_option("The pause before the second attempt (1s).")] = None


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The options that the table [tasks] of the settings file has, too."""

    queues: Annotated[list[str] | None, option("Q", "A queue of tasks (tasks); repeatable.", "--queue")] = None
    pass_env: Annotated[
        list[str] | None, option("NAME", "A variable that tasks see, or PREFIX_* for all of them; repeatable.")
    ] = None
    child_reuse: Annotated[int | None, option("N", "Tasks that one child process runs (1).")] = None
    kill_grace: Annotated[float | None, duration_option("The time between SIGTERM and SIGKILL (5s).")] = None
    task_output: Annotated[
        str | None, option("MODE", "How to print what tasks print: log (after their ids), inherit (as it is) or drop.")
    ] = None
    unknown_grace: Annotated[float | None, duration_option("How long an unknown task waits for a worker (10m).")] = None

    def flags(self) -> dict[str, Any]:
        given = {name: None if value == [] else value for name, value in asdict(self).items()}
        return {name if name == "task_output" else f"task_{name}": value for name, value in given.items()}


@verb("worker", "--load shop.tasks --concurrency 8", until_stopped=True)
def worker(
    call: Call,
    limits: WorkerLimits,
    given: TaskSettings,
    imports: Annotated[
        list[str] | None, option("MODULE", "A module that defines tasks; repeatable.", "--load", "--import")
    ] = None,
    concurrency: Annotated[int | None, option("N", "Tasks that run at the same time (3).")] = None,
    until_idle: Annotated[bool, flag("--until-idle", "Stop when nothing is left to do.")] = False,
    roles: Annotated[
        str | None,
        option(
            "ROLES",
            f"The roles to run, separated by commas: {', '.join(ROLES)}; "
            "by default all, but events only with POSTROAD_TASK_EVENTS=1.",
        ),
    ] = None,
    reload: Annotated[
        bool, flag("--reload", "Restart the children when a source file changes; for development.")
    ] = False,
) -> None:
    """Run tasks in child processes of their own, until SIGTERM or Ctrl-C."""
    settings = call.settings(logs=True, concurrency=concurrency, **given.flags())
    chosen = _chosen(roles, settings)
    if TASKS in chosen and not (imports or settings.load):
        raise ConfigurationError(
            "import: no module is named, so every task would be unknown",
            field="import",
            remedy="Name the modules that define the tasks: --load shop.tasks.",
        )
    with call.backend() as backend:
        running: tasks.TaskWorker | None = None
        modules = imports or list(settings.load)
        if TASKS in chosen:
            running = _worker(backend, settings, modules, limits, reload=reload)
        elif SCHEDULER in chosen:
            up_runners.load_modules(modules)
        known = None if running is None else running.tasks
        around = jobs_dispatcher.worker_roles(
            backend, queue=settings.task_queues, **settings.identity, roles=chosen, tasks=known
        )
        _run(running, around, until_idle=until_idle)
    call.show({"stopped": True, "worker": None if running is None else running.worker_id}, "stopped")


def _chosen(roles: str | None, settings: Settings) -> tuple[str, ...]:
    if roles is None:
        # On AWS a function checks the health of tasks.
        off = {"health"} if settings.url.startswith("aws://") else set[str]()
        off |= set() if settings.task_events else {"events"}
        return tuple(role for role in ROLES if role not in off)
    chosen = tuple(role.strip() for role in roles.split(",") if role.strip())
    unknown = [role for role in chosen if role not in ROLES]
    if unknown or not chosen:
        raise ConfigurationError(
            f"roles: {', '.join(unknown) or 'nothing'} is not one of {', '.join(ROLES)}",
            field="roles",
            remedy=f"Name some of {', '.join(ROLES)}, separated by commas.",
        )
    return chosen


def _worker(
    backend: wiring.Backend, settings: Settings, imports: list[str], limits: WorkerLimits, *, reload: bool
) -> tasks.TaskWorker:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    options = {name: value for name, value in asdict(limits).items() if value is not None}
    return tasks.TaskWorker(
        backend,
        **settings.task_worker,
        **settings.identity,
        imports=imports,
        reload=reload,
        concurrency=settings.concurrency,
        dead_letters=False,
        publish_events=False,
        **options,
    )


def _run(running: tasks.TaskWorker | None, roles: list[tasks.Role], *, until_idle: bool) -> None:
    """Run until stopped, or until neither tasks nor roles find anything to do."""
    if until_idle:
        while True:
            if running is not None:
                running.run(until_idle=True)
            if not tasks_threads.RoleThreads(roles).once() or (running is not None and running.was_stopped):
                return
            # What was due at the beginning is run; a schedule of every second would never leave nothing to do.
            roles = [role for role in roles if role.name != SCHEDULER]
    if running is not None:
        with tasks_threads.RoleThreads(roles, ended=running.stop):
            running.run()
        return
    waker = tasks_threads.Waker()
    with heard_by(waker.wake), tasks_threads.RoleThreads(roles, ended=waker.wake):
        waker.wait(inf)
