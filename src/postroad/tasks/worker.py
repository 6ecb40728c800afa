"""The worker: receives the messages of tasks and runs each in a child process of its own."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Sequence

from postroad.arguments import check
from postroad.errors import ConfigurationError
from postroad.journal import Appends
from postroad.signals import heard_by
from postroad.tasks.books import Books
from postroad.tasks.children.seats import Nursery
from postroad.tasks.config import WorkerConfig, WorkerId
from postroad.tasks.crew import Bell, Crew
from postroad.tasks.environment import for_children
from postroad.tasks.grounds import Ground, party
from postroad.tasks.queues import open_queue
from postroad.tasks.recording import Scribe
from postroad.tasks.registry import TaskRegistry, default_tasks
from postroad.tasks.shop import Shop
from postroad.tasks.telling import tell


class TaskWorker:
    """Runs the tasks of one queue, `concurrency` at a time, until it is stopped.

    A task whose name it does not know is handed back for `unknown_grace` seconds, counted from `Task Pending`, so that
    workers of another version may take it; then it fails. With `until_idle` it fails at once.
    """

    def __init__(
        self,
        backend: Ground,
        *,
        queue: str = "tasks",
        imports: Sequence[str] = (),
        registry: TaskRegistry | None = None,
        tenant_id: str | None = None,
        app: str | None = None,
        concurrency: int = 3,
        wait: float = 20.0,
        visibility_extension: float = 30.0,
        extension_interval: float = 20.0,
        timeout: float = 200.0,
        kill_grace: float = 5.0,
        max_attempts: int = 3,
        retry_base: float = 1.0,
        retry_cap: float = 30.0,
        drain_timeout: float = 30.0,
        pass_env: Sequence[str] = (),
        max_output_bytes: int = 5_242_880,
        child_reuse: int = 1,
        unknown_grace: float = 600.0,
        worker_id: str | None = None,
        journal: Appends | None = None,
    ) -> None:
        config = WorkerConfig(
            concurrency=concurrency, wait=wait, visibility_extension=visibility_extension,
            extension_interval=extension_interval, timeout=timeout, kill_grace=kill_grace, max_attempts=max_attempts,
            retry_base=retry_base, retry_cap=retry_cap, drain_timeout=drain_timeout,
            pass_env=pass_env if isinstance(pass_env, str) else tuple(pass_env),  # type: ignore[arg-type]  # refused
            max_output_bytes=max_output_bytes, child_reuse=child_reuse, unknown_grace=unknown_grace,
        )  # fmt: skip
        who = party(tenant_id, app)
        check(worker_id, WorkerId | None, "worker_id", ConfigurationError)
        self.worker_id = _new_id() if worker_id is None else worker_id
        self._config = config
        scribe = Scribe(
            app=who.app, environment=backend.stage, origin="sqs-worker", clock=backend.clock, worker_id=self.worker_id
        )
        self._shop = Shop(
            worker_id=self.worker_id,
            tenant=who.tenant_id,
            queue_name=queue,
            config=config,
            queue=open_queue(backend, queue),
            books=Books(backend, journal),
            scribe=scribe,
            nursery=Nursery(
                (default_tasks if registry is None else registry).definitions(),
                imports=tuple(imports),
                environment=for_children(config.pass_env),
                child_reuse=child_reuse,
                max_output_bytes=max_output_bytes,
            ),
            clock=backend.clock,
            keeps_large=backend.blobs() is not None,
        )
        self.was_stopped = False
        """Whether the last run ended because it was told to."""
        self._stops = 0
        self._bell: Bell | None = None

    def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped, or until the queue holds nothing. In the main thread SIGTERM and SIGINT stop it."""
        bell = self._bell = Bell()
        try:
            with heard_by(self.stop):
                self._shop.nursery.start()
                tell("worker_started", worker=self.worker_id, tasks=sorted(self._shop.nursery.tasks))
                Crew(self._shop, bell, lambda: self._stops, until_idle=until_idle).run()
        finally:
            self._shop.nursery.close()
            self.was_stopped = self._stops > 0
            self._stops, self._bell = 0, None
            bell.close()
            tell("worker_stopped", worker=self.worker_id)

    def stop(self) -> None:
        """Receive nothing more; what runs may finish within `drain_timeout`. Called twice, it is killed at once."""
        self._stops += 1
        if (bell := self._bell) is not None:
            bell.ring()


def _new_id() -> str:
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()[:64])
    return f"worker-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
