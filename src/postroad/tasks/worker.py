"""The worker: it receives the messages of tasks and runs each in its own child process."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated

from msgspec import Meta

from postroad.arguments import build_structs, check, check_settings, text
from postroad.errors import ConfigurationError
from postroad.journal import Appends
from postroad.ports import Store
from postroad.queues import MAX_VISIBILITY, MAX_WAIT
from postroad.signals import heard_by
from postroad.tasks.child_output import TaskOutput
from postroad.tasks.dead_letters import DeadLetterHandler
from postroad.tasks.leases import TaskRecords
from postroad.tasks.messages import EventFactory, log_event, open_queue, tenant_and_app, wants_events
from postroad.tasks.pool import ChildPool
from postroad.tasks.presence import RENEW_SECONDS, Presence
from postroad.tasks.processes import TaskEntry
from postroad.tasks.registry import TaskRegistry, Timeout, Variables, default_tasks, passed
from postroad.tasks.threads import Role, RoleThreads, Shared, Waker, WorkerRun

_WorkerId = text(r"[A-Za-z0-9_.:-]{1,256}", "1 to 256 letters, digits, '_', '.', ':' or '-'")
_Positive = Annotated[int, Meta(ge=1)]
_Pause = Annotated[float, Meta(ge=0, le=MAX_VISIBILITY, description=f"is not from 0 to {MAX_VISIBILITY:g} seconds")]
_Interval = Annotated[
    float, Meta(ge=0.001, le=MAX_VISIBILITY, description=f"is not from 0.001 to {MAX_VISIBILITY:g} seconds")
]
# A message is hidden for one and a half extensions, which must stay within what queues allow.
_Extension = Annotated[
    float, Meta(ge=0.001, le=MAX_VISIBILITY / 1.5, description=f"is not from 0.001 to {MAX_VISIBILITY / 1.5:g} seconds")
]
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_PASSED = (
    *("PATH", "HOME", "USER", "SHELL", "TMPDIR", "PWD", "LANG", "LC_*", "TZ"),
    *("TERM", "COLORTERM", "FORCE_COLOR", "PYTHONPATH"),
    # Without these a task reaches nothing where a proxy or a company's own certificates stand in the way.
    *(*_PROXIES, *(name.lower() for name in _PROXIES)),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)


# How often source files are looked at while children are reloaded.
_RELOAD_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The numbers of a worker as `TaskWorker` describes them; seconds unless the name says otherwise."""

    concurrency: _Positive = 3
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT, description="is not from 0 to 20 seconds")] = 20.0
    visibility_extension: _Extension = 30.0
    extension_interval: _Interval = 20.0
    timeout: Timeout = 200.0
    kill_grace: _Pause = 5.0
    max_attempts: _Positive = 3
    retry_base: _Pause = 1.0
    retry_cap: _Pause = 30.0
    drain_timeout: _Pause = 30.0
    pass_env: Variables = ()
    max_output_bytes: _Positive = 5_242_880
    child_reuse: Annotated[int, Meta(ge=1, le=1_000)] = 1
    unknown_grace: _Pause = 600.0
    task_output: TaskOutput = "log"
    reload: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.visibility_extension <= self.extension_interval:
            raise ConfigurationError(
                f"visibility_extension: {self.visibility_extension:g} s is too short: the next extension comes "
                f"after {self.extension_interval:g} s",
                field="visibility_extension",
                remedy="Extend by more than the interval between two extensions, such as 30 s every 20 s.",
            )

    @property
    def visibility(self) -> float:
        """How long a message is hidden at first, and how long a lease lasts without a refresh."""
        return 1.5 * self.visibility_extension


def for_children(pass_env: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of this process's environment that its children see."""
    return passed((*_PASSED, *pass_env), env)


class TaskWorker:
    """Runs the tasks of one or more queues, `concurrency` at a time in all, until it is stopped.

    A task whose name it does not know is released for `unknown_grace` seconds, counted from `Task Pending`, so that
    workers of another version may run it; then it fails. With `until_idle` it fails at once.

    Args:
        backend: The store that holds queue, leases and journal, as `connect()` returns it.
        queue: The name of the queue, or of several; on AWS without the stage.
        imports: Modules that define tasks; the children import them.
        registry: The tasks; by default those of `@task`.
        tenant_id: The tenant of messages that name none; by default that of the settings.
        app: The app of the recorded events; by default that of the settings.
        concurrency: How many children run at the same time; 3 by default. Raise it to the number of cores for CPU
            work, and higher for tasks that wait for others.
        wait: Seconds that one poll waits for messages, up to 20, which is the default.
        visibility_extension: Seconds by which message and lease are extended, 30 by default; more than
            `extension_interval`. Shorter values find a dead worker sooner and cost more requests.
        extension_interval: Seconds between two extensions; 20 by default.
        timeout: Seconds that an attempt may take, unless its task says otherwise; 200 by default, up to 43,200.
        kill_grace: Seconds between SIGTERM and SIGKILL; 5 by default. Raise it for tasks that clean up.
        max_attempts: How often a task is tried, unless the task says otherwise; 3 by default.
        retry_base: Seconds before the second attempt, doubled before each further one; 1 by default.
        retry_cap: The longest pause between two attempts, in seconds; 30 by default.
        drain_timeout: Seconds that running children may continue after a stop; 30 by default.
        pass_env: Environment variables that children see besides PATH, HOME, proxies, CA files and the like; none by
            default. `SHOP_*` is every variable that begins so. `POSTROAD_URL` is the file of `backend`, if it is one.
        max_output_bytes: The largest result, as JSON; 5 MiB by default.
        child_reuse: How many tasks one child runs, up to 1,000; 1 by default. More is faster, for code that you trust.
        unknown_grace: Seconds for which a task with an unknown name is left to other workers; 600 by default.
        task_output: What becomes of the output of tasks: `log`, the default, writes each line to standard error after
            the request id and without secrets; `inherit` writes it there as it is, for progress bars and colours;
            `drop` does not write it. The last lines of a failed attempt are in the journal in every case.
        reload: Whether children are restarted when a source file that they loaded changes, for development; False by
            default. Running tasks finish with the code that they began with.
        worker_id: Its name in leases and events; by default made of host and process.
        journal: Where events go instead of the backend's journal, such as an `EventBridgeSender`.
        dead_letters: Whether to record tasks that used up their attempts as failed, so that `wait` ends; True by
            default. False leaves them to another process that does it: a worker with the role `dlq`, or the function
            `dlq_processor` on AWS. A run `until_idle` leaves them in the dead letters, for a `DeadLetterHandler`.
        publish_events: Whether to publish the ends of tasks and jobs on the bus `tasks`; by default as the setting
            `task_events` says, which is off.

    Raises:
        ConfigurationError: An argument is out of its bounds.
        QueueNotFound: The queue does not exist on AWS; create it with `postroad task init`.

    Example:
        TaskWorker(backend, imports=["shared.tasks"], concurrency=8).run()
    """

    def __init__(
        self,
        backend: Store,
        *,
        queue: str | Sequence[str] = "tasks",
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
        task_output: TaskOutput = "log",
        reload: bool = False,
        worker_id: str | None = None,
        journal: Appends | None = None,
        dead_letters: bool = True,
        publish_events: bool | None = None,
    ) -> None:
        given = locals()
        # A text is no list of names, and is refused there.
        given |= {"pass_env": pass_env if isinstance(pass_env, str) else tuple(pass_env)}
        config = WorkerConfig(**{each.name: given[each.name] for each in fields(WorkerConfig)})
        names = checked_queues(queue)
        # A file is named by its whole path, because a task has a working directory of its own; another store is what
        # the environment of the worker says.
        address = {"POSTROAD_URL": backend.url} if backend.url.startswith("sqlite:") else {}
        tenant, app = tenant_and_app(tenant_id, app)
        check(worker_id, _WorkerId | None, "worker_id", ConfigurationError)
        self.worker_id = _new_id() if worker_id is None else worker_id
        factory = EventFactory(
            app=app, environment=backend.stage, origin="sqs-worker", clock=backend.clock, worker_id=self.worker_id
        )
        first = Shared(
            worker_id=self.worker_id,
            tenant=tenant,
            queue_name=names[0],
            config=config,
            queue=open_queue(backend, names[0]),
            records=TaskRecords(backend, journal),
            factory=factory,
            pool=ChildPool(
                (default_tasks if registry is None else registry).definitions(),
                imports=tuple(imports),
                environment=for_children(config.pass_env, os.environ | address),
                child_reuse=child_reuse,
                max_output_bytes=max_output_bytes,
                task_output=task_output,
                reload=reload,
            ),
            clock=backend.clock,
            keeps_large=backend.blobs() is not None,
            address=address,
        )
        others = (replace(first, queue_name=name, queue=open_queue(backend, name)) for name in names[1:])
        self._sources = [first, *others]
        self._pool = first.pool
        self._presence = Presence(
            backend.items(),
            backend.clock,
            first.running,
            tenant=tenant,
            worker_id=self.worker_id,
            queues=names,
            concurrency=concurrency,
            is_far=not first.queue.traits.short_waits,
        )
        self._roles: list[Role] = [Role("reload", _RELOAD_SECONDS, first.pool.reload)] if reload else []
        self._letters = [
            DeadLetterHandler(backend, queue=name, tenant_id=tenant, app=app, journal=journal)
            for name in (names if dead_letters else ())
        ]
        if wants_events(publish_events):
            # A worker that publishes nothing does not import the bus.
            from postroad.tasks.event_publisher import EventPublisher

            self._roles.append(EventPublisher(backend, tenant=tenant).role())
        self.was_stopped = False
        """Whether the last run ended because of `stop()`."""
        self._stops = 0
        self._waker: Waker | None = None

    def run(self, *, until_idle: bool = False) -> None:
        """Run tasks until stopped or, with `until_idle`, until the queues are empty.

        In the main thread SIGTERM and SIGINT stop it.
        """
        waker, presence = Waker(), self._presence
        self._waker = waker
        build_structs()
        try:
            with heard_by(self.stop):
                self._pool.start()
                queues = [source.queue_name for source in self._sources]
                log_event("worker_started", worker=self.worker_id, queues=queues, tasks=sorted(self._pool.tasks))
                # A run that ends by itself is over before anybody looks.
                lasting = [] if until_idle else [Role("presence", RENEW_SECONDS, presence.renew, presence.end)]
                lasting += [] if until_idle else [letters.role() for letters in self._letters]
                with RoleThreads([*self._roles, *lasting], ended=self.stop):
                    WorkerRun(self._sources, waker, lambda: self._stops, until_idle=until_idle).run()
        finally:
            self._pool.close()
            self.was_stopped = self._stops > 0
            self._stops, self._waker = 0, None
            log_event("worker_stopped", worker=self.worker_id)

    def tasks(self) -> Mapping[str, TaskEntry] | None:
        """Return the tasks that the children know, for a `Scheduler`; None before they are loaded."""
        return self._pool.tasks or None

    def child_pids(self) -> set[int]:
        """Return the process ids of the children that run a task now."""
        return self._sources[0].running.pids()

    def stop(self) -> None:
        """Stop receiving; running tasks may finish within `drain_timeout`. A second call kills them at once."""
        self._stops += 1
        if (waker := self._waker) is not None:
            waker.wake()


def checked_queues(queue: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the queues, or raise `ConfigurationError`."""
    names = (queue,) if isinstance(queue, str) else tuple(queue)
    if not names or len(set(names)) < len(names):
        raise ConfigurationError(
            f"queue: {', '.join(names)} names a queue twice" if names else "queue: none is named",
            field="queue",
            remedy="Name each queue once.",
        )
    return names


def _new_id() -> str:
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()[:64])
    return f"worker-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
