"""Tasks and jobs: a worker for what the loaded modules define, and all the duties beside it."""

from __future__ import annotations

import threading

from postroad.errors import QueueNotFound
from postroad.settings import Settings
from postroad.wiring.backend import Backend

# What is left after this is given back before the supervisor loses its patience.
_DRAIN_SECONDS = 6.0
_KILL_GRACE_SECONDS = 1.0


def run_tasks(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Work until told to stop; where nobody made the queues of tasks there is nothing to do."""
    from postroad.jobs.roles import duties
    from postroad.tasks.roles import Rounds

    try:
        roles = duties(backend, tenant_id=settings.tenant, app=settings.app)
    except QueueNotFound:
        stop.wait()
        return
    over = threading.Event()

    def follow() -> None:
        # The other parts go on when a thread of this one ends; the error starts this one again.
        stop.wait()
        over.set()

    threading.Thread(target=follow, name="postroad-worker-stop", daemon=True).start()
    with Rounds(roles, ended=over.set):
        _work(backend, settings, over)


def _work(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    from postroad.tasks import TaskWorker, default_tasks

    if not default_tasks.names():
        # The loaded modules define none, and a worker that knows no task would fail every one.
        stop.wait()
        return
    worker = TaskWorker(
        backend, imports=settings.load, tenant_id=settings.tenant, app=settings.app, concurrency=settings.concurrency,
        drain_timeout=_DRAIN_SECONDS, kill_grace=_KILL_GRACE_SECONDS,
    )  # fmt: skip

    def stop_in_time() -> None:
        stop.wait()
        worker.stop()

    threading.Thread(target=stop_in_time, name="postroad-worker-drain", daemon=True).start()
    worker.run()
