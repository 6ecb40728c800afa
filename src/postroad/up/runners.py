"""The child `runners`: its parts, each on a thread that is restarted when it dies, and the modules they load."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from postroad.errors import ConfigurationError, PostroadError, QueueNotFound, describe_import
from postroad.settings import Settings, nearest
from postroad.signals import die_with_parent
from postroad.telemetry import get_logger
from postroad.up.children import Notice, PartReport, Report, Restarts, SupervisorLink, line
from postroad.up.dispatcher import run_dispatcher
from postroad.up.hello import say_hello
from postroad.up.notifications import send_notifications
from postroad.views import PartState
from postroad.wiring import Backend, buses_of, connect, run as receive

if TYPE_CHECKING:
    from postroad.bus import Bus


# What is left after this time is released before the supervisor kills the child.
_STOP_SECONDS = 7.0
_KILL_GRACE_SECONDS = 1.0
_AGENTS_CHECK_SECONDS = 30.0
_FIRST_SWEEP_SECONDS = 10.0
_HOUSEKEEPING_SECONDS = 600.0
_REFUSED = 77
"""The exit code of a process that could not import what it was asked to try."""


def run_tasks(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Run tasks until `stop` is set; do nothing if the queues of tasks do not exist."""
    from postroad.jobs.dispatcher import ROLES, worker_roles
    from postroad.tasks.threads import RoleThreads

    # The health of tasks is a part of its own.
    names = set(ROLES) - ({"health"} if settings.task_events else {"health", "events"})
    try:
        roles = worker_roles(backend, queue=settings.task_queues, **settings.identity, roles=names)
    except QueueNotFound:
        stop.wait()
        return
    over = threading.Event()

    # The other parts go on when a thread of this part ends; the error restarts this one.
    _when_set(stop, over.set, "postroad-worker-stop")
    with RoleThreads(roles, ended=over.set):
        _work(backend, settings, over)


def run_health(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Check the running tasks every five minutes until `stop` is set; on AWS a function does it."""
    if backend.stage_prefix:
        stop.wait()
        return
    from postroad.tasks import health_role
    from postroad.tasks.threads import RoleThreads

    over = threading.Event()
    _when_set(stop, over.set, "postroad-health-stop")
    with RoleThreads([health_role(backend, **settings.identity)], ended=over.set):
        over.wait()


def _work(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    from postroad.tasks import TaskWorker, default_tasks

    if not default_tasks.names():
        # A worker that knows no task would fail every one.
        stop.wait()
        return
    options = {"kill_grace": _KILL_GRACE_SECONDS, **settings.task_worker}
    worker = TaskWorker(
        backend,
        **options,
        imports=settings.load,
        **settings.identity,
        concurrency=settings.concurrency,
        # A longer time to end leaves less time to finish: both have to fit into the time of a stop.
        drain_timeout=max(0.0, _STOP_SECONDS - options["kill_grace"]),
        dead_letters=False,
        publish_events=False,
    )
    _when_set(stop, worker.stop, "postroad-worker-drain")
    worker.run()


def _when_set(event: threading.Event, action: Callable[[], object], name: str) -> None:
    """Call `action` on a thread of its own once the event is set."""

    def wait() -> None:
        event.wait()
        action()

    threading.Thread(target=wait, name=name, daemon=True).start()


def load_modules(names: Iterable[str], *, field: str = "load") -> None:
    """Import each module; search the working directory last.

    Args:
        names: The names of the modules.
        field: The option or argument that named them, for the error.

    Raises:
        ConfigurationError: A module cannot be imported.
    """
    for name in names:
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"{field}: {name!r} cannot be imported: {describe_import(error)}",
                field=field,
                remedy=_import_remedy(name, error),
            ) from error


def try_modules(names: Sequence[str]) -> None:
    """Raise what `load_modules` would; the modules are imported in a process of their own, which then ends."""
    boot = f"from {__name__} import {_try_here.__name__}; {_try_here.__name__}()"
    command = [sys.executable, "-P", "-c", boot, str(os.getpid()), *names]
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if tried.returncode == _REFUSED:
        # Before this line stands what the modules print.
        report = msgspec.json.decode(tried.stdout.splitlines()[-1], type=Report)
        raise ConfigurationError(str(report.refused), field="load", remedy=report.remedy)


def _try_here() -> None:
    parent, *names = sys.argv[1:]
    die_with_parent(int(parent))
    try:
        load_modules(names)
    except ConfigurationError as error:
        sys.stdout.flush()
        os.write(1, b"\n" + line(Report(refused=str(error), remedy=error.remedy)))
        os._exit(_REFUSED)
    os._exit(0)


def _import_remedy(name: str, error: BaseException) -> str:
    if name.endswith(".py"):
        return f"Name the module instead of its file: {Path(name).stem}."
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        return "Name a module that `python -c 'import …'` finds from this directory."
    return f"Correct what the module does when it is imported; `python -c 'import {name}'` shows the whole traceback."


def find_buses(target: str) -> list[Bus]:
    """Return the buses of `MODULE`, or the one of `MODULE:NAME`.

    Raises:
        ConfigurationError: The module cannot be imported, or holds no such bus.
    """
    from postroad.bus import Bus

    module_name, _, name = target.partition(":")
    load_modules([module_name], field="module")
    buses = buses_of([module_name])
    if not name and buses:
        # A bus without handlers only publishes.
        return [bus for _, bus in buses if bus.has_handlers] or [bus for _, bus in buses]
    found = getattr(sys.modules[module_name], name, None) if name else None
    if isinstance(found, Bus):
        return [found]
    raise ConfigurationError(
        f"module: {target!r} is not a bus" if name else f"module: {module_name!r} declares no bus",
        field="module",
        nearest=nearest(name, [known for known, _ in buses]) if name else None,
        remedy='Declare one at the top of the module, as in orders = postroad.Bus("orders", group="billing").',
    )


def run_buses(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Receive with every bus that the loaded modules declare, until `stop` is set."""
    buses = [bus for _, bus in buses_of(settings.load) if bus.has_handlers]
    if not buses:
        stop.wait()
        return
    for bus in buses:
        if not bus.is_bound:
            bus.bind(backend)
    receive(*buses, stop=stop)


def move_events(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Move the agents' events until `stop` is set; wait while agents are not set up.

    If the settings say that functions on AWS move the events, this only checks that they exist.

    Raises:
        ConfigurationError: Part of what agents need is missing.
    """
    agents = backend.agents(**settings.agents)
    here = agents.runs_here or not settings.agents_functions
    while not stop.is_set():
        if backend.check_agents("runner" if here else "functions") and here:
            # On one file there is one runner: a fixed name lets it restart without waiting for its lease to expire.
            runner = agents.runner(worker="postroad-up" if agents.runs_here else None)
            try:
                runner.run(stop)
            finally:
                runner.close()
        else:
            stop.wait(_AGENTS_CHECK_SECONDS)


@contextmanager
def move_events_here(backend: Backend, settings: Settings) -> Iterator[None]:
    """Move events in this process while the block runs, if no other process can see them."""
    if backend.agents().is_shared:
        yield
        return
    stop = threading.Event()
    moving = threading.Thread(target=move_events, args=(backend, settings, stop), name="agents")
    moving.start()
    try:
        yield
    finally:
        stop.set()
        moving.join()


def run_housekeeping(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Delete expired answers every ten minutes until `stop` is set."""
    # Not at once: a start has more urgent things to do.
    stop.wait(_FIRST_SWEEP_SECONDS)
    while not stop.is_set():
        sweep(backend, settings)
        stop.wait(_HOUSEKEEPING_SECONDS)


def sweep(backend: Backend, settings: Settings) -> int:
    """Delete answers kept for idempotency keys for longer than 24 hours, and return how many."""
    from postroad.http import AnswerStore

    forgotten = AnswerStore(backend.items(), tenant=settings.tenant, clock=backend.clock, joins_writes=False).prune()
    if forgotten:
        get_logger("housekeeping").info("housekeeping_swept", answers=forgotten)
    return forgotten


Run = Callable[[Backend, Settings, threading.Event], None]
"""Runs a part until it is stopped."""
RUNNER_PARTS: Mapping[str, Run] = {
    "hello": say_hello,
    "dispatcher": run_dispatcher,
    "housekeeping": run_housekeeping,
    "agents": move_events,
    "notifications": send_notifications,
    "bus": run_buses,
    "worker": run_tasks,
    "health": run_health,
}


_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_STEADY_SECONDS = 2.0
_log = get_logger("runners")


def run(supervisor: SupervisorLink, parts: Mapping[str, Run]) -> None:
    """Run the parts until the supervisor stops this child."""
    settings = supervisor.config.settings
    # Threads that import one package at the same time may find it half loaded.
    for package in ("postroad.bus", "postroad.tasks", "postroad.jobs.dispatcher", "postroad.agents"):
        importlib.import_module(package)
    load_modules(settings.load)
    with connect(settings.url, trail_keep=settings.trail_keep) as backend:
        stop = threading.Event()

        def on_notice(notice: Notice) -> None:
            if notice.phase != "running":
                stop.set()

        supervisor.listen(on_notice)
        Runners(supervisor, backend, settings, stop).run(parts)


class Runners:
    """The threads of the parts, whose states are reported to the supervisor."""

    def __init__(self, supervisor: SupervisorLink, backend: Backend, settings: Settings, stop: threading.Event) -> None:
        self._supervisor = supervisor
        self._backend = backend
        self._settings = settings
        self._stop = stop
        self._lock = threading.Lock()
        self._reports: dict[str, PartReport] = {}

    def run(self, parts: Mapping[str, Run]) -> None:
        """Run the parts and return when all have stopped."""
        threads = [threading.Thread(target=self._keep_running, args=part, name=part[0]) for part in parts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _keep_running(self, part: str, run: Run) -> None:
        stop, restarts = self._stop, Restarts()
        while not stop.is_set():
            # One that died counts as running again when it has run for a while: it may die at once.
            self._report(part, "starting" if restarts.total else "running", restarts)
            started_at = time.monotonic()
            try:
                self._run_when_it_can(part, run, restarts)
            except Exception:
                _log.exception("part_failed", part=part)
            if stop.is_set():
                return
            restarts = restarts.died(time.monotonic(), started_at=started_at)
            if restarts.failed:
                self._report(part, "failed", restarts)
                return
            self._report(part, "starting", restarts)
            stop.wait(restarts.delay)
            restarts = restarts.started_again()

    def _run_when_it_can(self, part: str, run: Run, restarts: Restarts) -> None:
        """Run the part; while something that it needs is unavailable, report it and try again, which is no death."""
        pause = _FIRST_PAUSE
        missing: str | None = None
        while not self._stop.is_set():
            started_at = time.monotonic()
            try:
                with self._recovering(part, restarts) if missing or restarts.total else nullcontext():
                    run(self._backend, self._settings, self._stop)
                return
            except PostroadError as error:
                if time.monotonic() - started_at > _STEADY_SECONDS:
                    pause, missing = _FIRST_PAUSE, None
                reported, missing = missing, f"{error} {error.remedy}"
            if missing != reported:
                _log.warning("part_waiting", part=part, error=missing)
            self._report(part, "starting", restarts, missing)
            self._stop.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    @contextmanager
    def _recovering(self, part: str, restarts: Restarts) -> Iterator[None]:
        """Report that a part that failed runs again, once it has run for a while."""
        steady = threading.Timer(_STEADY_SECONDS, self._report, (part, "running", restarts))
        steady.start()
        try:
            yield
        finally:
            steady.cancel()
            steady.join()

    def _report(self, part: str, state: PartState, restarts: Restarts, missing: str | None = None) -> None:
        with self._lock:
            self._reports[part] = PartReport(
                name=part,
                state=state,
                restarts=restarts.total,
                missing=msgspec.UNSET if missing is None else missing,
            )
            self._supervisor.send(Report(parts=tuple(self._reports.values())))
