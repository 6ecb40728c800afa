"""What runs for loaded modules: their buses, their tasks and jobs, the agents' events, and housekeeping."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from postroad.errors import ConfigurationError, QueueNotFound
from postroad.http import Memory
from postroad.settings import Settings, nearest
from postroad.telemetry import get_logger
from postroad.wiring import Backend

if TYPE_CHECKING:
    from postroad.bus import Bus


# What is left after this is given back before the supervisor loses its patience.
_DRAIN_SECONDS = 6.0
_KILL_GRACE_SECONDS = 1.0


def run_tasks(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Work until told to stop; where nobody made the queues of tasks there is nothing to do."""
    from postroad.jobs.dispatcher import worker_roles
    from postroad.tasks.threads import RoleThreads

    try:
        roles = worker_roles(backend, tenant_id=settings.tenant, app=settings.app)
    except QueueNotFound:
        stop.wait()
        return
    over = threading.Event()

    def follow() -> None:
        # The other parts go on when a thread of this one ends; the error starts this one again.
        stop.wait()
        over.set()

    threading.Thread(target=follow, name="postroad-worker-stop", daemon=True).start()
    with RoleThreads(roles, ended=over.set):
        _work(backend, settings, over)


def _work(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    from postroad.tasks import TaskWorker, default_tasks

    if not default_tasks.names():
        # The loaded modules define none, and a worker that knows no task would fail every one.
        stop.wait()
        return
    worker = TaskWorker(
        backend,
        imports=settings.load,
        tenant_id=settings.tenant,
        app=settings.app,
        concurrency=settings.concurrency,
        drain_timeout=_DRAIN_SECONDS,
        kill_grace=_KILL_GRACE_SECONDS,
        publish_events=False,
    )

    def stop_in_time() -> None:
        stop.wait()
        worker.stop()

    threading.Thread(target=stop_in_time, name="postroad-worker-drain", daemon=True).start()
    worker.run()


def load_modules(names: Iterable[str]) -> None:
    """Import each module; the working directory is looked in last."""
    for name in names:
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ConfigurationError(
                f"load: module {name!r} cannot be imported: {type(error).__name__}: {error}",
                field="load",
                remedy="Name a module that `python -c 'import …'` finds from this directory.",
            ) from error


def find_buses(target: str) -> list[Bus]:
    """Return the buses of `MODULE`, or the one of `MODULE:NAME`.

    Raises:
        ConfigurationError: The module cannot be imported, or holds no such bus.
    """
    from postroad.bus import Bus

    module_name, _, name = target.partition(":")
    load_modules([module_name])
    buses = buses_of(sys.modules[module_name])
    if not name and buses:
        return list(buses.values())
    found = getattr(sys.modules[module_name], name, None) if name else None
    if isinstance(found, Bus):
        return [found]
    raise ConfigurationError(
        f"module: {target!r} is not a bus" if name else f"module: {module_name!r} declares no bus",
        field="module",
        nearest=nearest(name, list(buses)) if name else None,
        remedy='Declare one at the top of the module, as in orders = postroad.Bus("orders", group="billing").',
    )


def buses_of(module: ModuleType) -> dict[str, Bus]:
    """Return the buses that the module declares, each once, by name."""
    from postroad.bus import Bus

    found = {name: value for name, value in vars(module).items() if isinstance(value, Bus)}
    return {name: bus for name, bus in found.items() if next(n for n, b in found.items() if b is bus) == name}


def run_buses(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Receive with every bus that the loaded modules declare, until told to stop."""
    from postroad.wiring import run

    buses = _declared(settings.load)
    if not buses:
        stop.wait()
        return
    for bus in buses:
        if not bus.is_bound:
            bus.bind(backend)
    run(*buses, stop=stop)


def _declared(modules: Sequence[str]) -> list[Bus]:
    if not any("postroad.bus" in sys.modules for _ in modules):
        return []
    found = [bus for name in modules if name in sys.modules for bus in buses_of(sys.modules[name]).values()]
    return list({id(bus): bus for bus in found}.values())


_LOOK_AGAIN = 30.0


def move_events(backend: Backend, stop: threading.Event, *, functions: bool = False) -> None:
    """Run until told to stop. `functions` of AWS may do the work instead: then see that they are there.

    Where nobody set agents up there is nothing to do until somebody does. `ConfigurationError` names what is missing of
    them.
    """
    agents = backend.agents()
    here = agents.runs_here or not functions
    while not stop.is_set():
        if backend.check_agents("runner" if here else "functions") and here:
            # All that ever run on one file share a name, so that a restart waits for no lease; elsewhere many may run.
            runner = agents.runner(worker="postroad-up" if agents.runs_here else None)
            try:
                runner.run(stop)
            finally:
                runner.close()
        else:
            stop.wait(_LOOK_AGAIN)


@contextmanager
def moved_here(backend: Backend) -> Iterator[None]:
    """Move events in this process while the block runs, where no other process sees them."""
    if backend.agents().is_shared:
        yield
        return
    stop = threading.Event()
    moving = threading.Thread(target=move_events, args=(backend, stop), name="agents")
    moving.start()
    try:
        yield
    finally:
        stop.set()
        moving.join()


_EVERY_SECONDS = 600.0
_log = get_logger("housekeeping")


def keep_house(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Sweep every ten minutes until told to stop."""
    while not stop.is_set():
        sweep(backend, settings)
        stop.wait(_EVERY_SECONDS)


def sweep(backend: Backend, settings: Settings) -> int:
    """Forget answers kept for idempotency keys for longer than 24 hours; how many."""
    forgotten = Memory(backend.items(), tenant=settings.tenant, clock=backend.clock, joins_writes=False).prune()
    if forgotten:
        _log.info("housekeeping_swept", answers=forgotten)
    return forgotten
