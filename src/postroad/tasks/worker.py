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
from postroad.ports import Store
from postroad.signals import heard_by
from postroad.tasks.children.pool import ChildPool
from postroad.tasks.config import WorkerConfig, WorkerId, for_children
from postroad.tasks.log import tell
from postroad.tasks.queues import open_queue, tenant_and_app, wants_events
from postroad.tasks.records import EventFactory, TaskRecords
from postroad.tasks.registry import TaskRegistry, default_tasks
from postroad.tasks.roles import Role, RoleThreads
from postroad.tasks.worker_threads import Shared, Waker, WorkerRun


class TaskWorker:
    """Runs the tasks of one queue, `concurrency` at a time, until it is stopped.

    A task whose name it does not know is handed back for `unknown_grace` seconds, counted from `Task Pending`, so that
    workers of another version may take it; then it fails. With `until_idle` it fails at once.

    Args:
        backend: The store that holds queue, leases and journal.
        queue: The name of the queue; on AWS without the stage.
        imports: Modules that define tasks; the children import them.
        registry: The tasks; by default those of `@task`.
        tenant_id: The tenant of messages that name none; by default what the settings say.
        app: In whose name events are recorded; by default what the settings say.
        concurrency: How many children run at the same time.
        wait: Seconds that one poll waits for messages, up to 20.
        visibility_extension: Seconds by which message and lease are extended; more than `extension_interval`.
        extension_interval: Seconds between two extensions.
        timeout: Seconds that a task may take, unless it says so itself; up to 43,200.
        kill_grace: Seconds between SIGTERM and SIGKILL.
        max_attempts: How often a task is tried, unless it says so itself.
        retry_base: Seconds before the second attempt; doubled before each next one.
        retry_cap: The longest pause between two attempts, in seconds.
        drain_timeout: Seconds that running children get to finish after a stop.
        pass_env: Names of environment variables that children may see.
        max_output_bytes: The largest result, as JSON.
        child_reuse: How many tasks one child runs, up to 1,000; more than 1 for code that you trust.
        unknown_grace: Seconds for which a task with an unknown name is left to other workers.
        worker_id: Its name in leases and events; by default of host and process.
        journal: Where events go instead of the backend's journal.
        publish_events: Whether to publish the ends of tasks and jobs on the bus `tasks`; by default as the setting
            `task_events` says, which is off.

    Raises:
        ConfigurationError: An argument is out of its bounds.

    Example:
        TaskWorker(backend, imports=["shared.tasks"], concurrency=8).run()
    """

    def __init__(
        self,
        backend: Store,
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
        publish_events: bool | None = None,
    ) -> None:
        config = WorkerConfig(
            concurrency=concurrency,
            wait=wait,
            visibility_extension=visibility_extension,
            extension_interval=extension_interval,
            timeout=timeout,
            kill_grace=kill_grace,
            max_attempts=max_attempts,
            retry_base=retry_base,
            retry_cap=retry_cap,
            drain_timeout=drain_timeout,
            pass_env=pass_env if isinstance(pass_env, str) else tuple(pass_env),  # type: ignore[arg-type]  # refused
            max_output_bytes=max_output_bytes,
            child_reuse=child_reuse,
            unknown_grace=unknown_grace,
        )
        who = tenant_and_app(tenant_id, app)
        check(worker_id, WorkerId | None, "worker_id", ConfigurationError)
        self.worker_id = _new_id() if worker_id is None else worker_id
        self._config = config
        factory = EventFactory(
            app=who.app, environment=backend.stage, origin="sqs-worker", clock=backend.clock, worker_id=self.worker_id
        )
        self._shared = Shared(
            worker_id=self.worker_id,
            tenant=who.tenant_id,
            queue_name=queue,
            config=config,
            queue=open_queue(backend, queue),
            records=TaskRecords(backend, journal),
            factory=factory,
            pool=ChildPool(
                (default_tasks if registry is None else registry).definitions(),
                imports=tuple(imports),
                environment=for_children(config.pass_env),
                child_reuse=child_reuse,
                max_output_bytes=max_output_bytes,
            ),
            clock=backend.clock,
            keeps_large=backend.blobs() is not None,
        )
        self._roles = _events_role(backend, who.tenant_id) if wants_events(publish_events) else []
        self.was_stopped = False
        """Whether the last run ended because it was told to."""
        self._stops = 0
        self._waker: Waker | None = None

    def run(self, *, until_idle: bool = False) -> None:
        """Work until stopped, or until the queue holds nothing. In the main thread SIGTERM and SIGINT stop it."""
        waker = self._waker = Waker()
        try:
            with heard_by(self.stop):
                self._shared.pool.start()
                tell("worker_started", worker=self.worker_id, tasks=sorted(self._shared.pool.tasks))
                with RoleThreads(self._roles, ended=self.stop):
                    WorkerRun(self._shared, waker, lambda: self._stops, until_idle=until_idle).run()
        finally:
            self._shared.pool.close()
            self.was_stopped = self._stops > 0
            self._stops, self._waker = 0, None
            waker.close()
            tell("worker_stopped", worker=self.worker_id)

    def stop(self) -> None:
        """Receive nothing more; what runs may finish within `drain_timeout`. Called twice, it is killed at once."""
        self._stops += 1
        if (waker := self._waker) is not None:
            waker.wake()


def _events_role(backend: Store, tenant: str) -> list[Role]:
    # A worker that publishes nothing does not pay for the import of the bus.
    from postroad.tasks.event_publisher import EventPublisher

    return [EventPublisher(backend, tenant=tenant).role()]


def _new_id() -> str:
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()[:64])
    return f"worker-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
