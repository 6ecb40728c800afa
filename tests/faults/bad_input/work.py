"""The journal, tasks and their worker, schedules, and jobs."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.faults.bad_input.cases import Answer, attempt, newest_dead_letter
from tests.faults.bad_input.library import Library, send
from tests.tasks.benches import APP, CHORES, QUICK, TENANT

from postroad.jobs import Jobs
from postroad.journal import JournalEvent
from postroad.tasks import TaskProducer, TaskRegistry, TaskWorker, task

PENDING = {"requestId": "r", "name": "echo"}


class Worker(Library):
    """A producer and a worker of the tenant `acme`, with one task done."""

    def __init__(self) -> None:
        super().__init__()
        self.producer = TaskProducer(self.backend, tenant_id=TENANT, app=APP)
        self.producer.submit("echo", {"n": 1}, request_id="known")
        self._work()

    def submit(self, name: str = "echo", input: Any = None, **options: Any) -> Answer:
        """Submit a task; the name is looked up, never imported."""
        modules = set(sys.modules)
        answer = attempt(lambda: self.producer.submit(name, input, **options))
        assert set(sys.modules) == modules
        return answer

    def retry(self, request_id: str) -> Answer:
        """Retry a task."""
        return attempt(lambda: self.producer.retry(request_id))

    def worker(self, **options: Any) -> Answer:
        """Make a worker."""
        return attempt(lambda: TaskWorker(self.backend, **options))

    def message(self, body: str) -> Answer:
        """Put a body into the queue of tasks and let a worker meet it."""
        send(self.backend.queue("tasks"), body, attributes={"tenantId": TENANT})
        self._work()
        return newest_dead_letter(self.backend.queue("tasks-dlq"), body.encode())

    def append(self, **changes: Any) -> Answer:
        """Append an event to the journal."""
        given: dict[str, Any] = {"tenant_id": TENANT, "entity_id": "r", "properties": PENDING}

        def call() -> object:
            kind = changes.pop("event_type", "Task Pending")
            [result] = self.backend.journal().append([JournalEvent.create(kind, **(given | changes))])
            if result.error is not None:
                raise result.error
            return result

        return attempt(call)

    def query(self, index: str = "PK", cursor_of: dict[str, Any] | None = None, **arguments: Any) -> Answer:
        """Query the journal, perhaps with the cursor of another query."""
        if cursor_of is not None:
            arguments["cursor"] = self.backend.journal().query(tenant=TENANT, **cursor_of).cursor
        if isinstance(entity := arguments.get("entity"), list):
            arguments["entity"] = tuple(entity)
        return attempt(lambda: self.backend.journal().query(index, **({"tenant": TENANT} | arguments)))

    def register(self, name: str = "t", function: Any = None, **options: Any) -> Answer:
        """Register a task; a refused one is not registered."""
        registry = TaskRegistry()
        answer = attempt(lambda: task(name, registry=registry, **options)(function or _do_nothing))
        assert registry.names() == []
        return answer

    def works(self) -> None:
        """Submit a task and find it again, pending."""
        handle = self.producer.submit("echo", {"n": 2})
        status = self.producer.status(handle.request_id)
        assert status is not None
        assert status.state == "pending"
        assert self.producer.cancel(handle.request_id)
        self._drop_what_waits()

    def _work(self) -> None:
        TaskWorker(self.backend, imports=CHORES, tenant_id=TENANT, app=APP, **QUICK).run(until_idle=True)

    def _drop_what_waits(self) -> None:
        queue = self.backend.queue("tasks")
        queue.ack(queue.receive(max_messages=10))


class JobsSurface(Library):
    """One open job and one that was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = Jobs(self.backend, tenant_id=TENANT, app=APP)
        for job_id in ("open", "cancelled"):
            self.jobs.submit_job([{"taskId": "a", "name": "echo"}], job_id=job_id)
        self.jobs.cancel("cancelled")
        self._number = 0

    def submit(self, tasks: Any, **options: Any) -> Answer:
        """Submit a job."""
        return attempt(lambda: self.jobs.submit_job(tasks, **options))

    def add(self, job_id: str = "open", tasks: Any = ({"taskId": "b", "name": "echo"},)) -> Answer:
        """Add tasks to a job."""
        return attempt(lambda: self.jobs.add_tasks(job_id, tasks))

    def act(self, verb: str, job_id: str, **options: Any) -> Answer:
        """Resume, cancel or draw a job."""
        return attempt(lambda: getattr(self.jobs, verb)(job_id, **options))

    def list(self, **options: Any) -> Answer:
        """List jobs."""
        return attempt(lambda: self.jobs.list_jobs(**options))

    def works(self) -> None:
        """Submit a job of two tasks, of which one is ready."""
        self._number += 1
        tasks = [{"taskId": "a", "name": "echo"}, {"taskId": "b", "name": "echo", "dependsOn": ["a"]}]
        made = self.jobs.submit_job(tasks, job_id=f"good-{self._number}")
        assert list_of(made.root_tasks) == ["a"]


def list_of(tasks: Any) -> list[str]:
    """Return the ids of tasks."""
    return json.loads(json.dumps(list(tasks)))  # type: ignore[no-any-return]  # strings


def _do_nothing(input: dict[str, Any], ctx: Any) -> None:
    """Do nothing."""
