"""Jobs whose tasks a test ends by hand, as a worker would."""

from __future__ import annotations

import json
from typing import Any

from postroad import Backend
from postroad.jobs import JobDispatcher, Jobs
from postroad.journal import JournalEvent, every_event, task_history
from postroad.queues import Queue
from postroad.tasks import EventFactory, TaskId, TaskProducer, TaskRecords

TENANT, APP = "acme", "shop"
SEED: list[dict[str, Any]] = [
    {"taskId": "task-A", "name": "scrape-store", "dependsOn": [], "input": {"storeId": "store-123"}},
    {"taskId": "task-B", "name": "analyze-competitors", "dependsOn": [], "input": {"market": "fashion"}},
    {"taskId": "task-C", "name": "color-tags", "dependsOn": ["task-A"], "input": {"style": "modern"}},
    {"taskId": "task-D", "name": "font-pairing", "dependsOn": ["task-A"], "input": {}},
    {"taskId": "task-E", "name": "compile-result", "dependsOn": ["task-C", "task-D"], "input": {}},
]


class Floor:
    """Everything of one tenant's jobs on one backend."""

    def __init__(self, backend: Backend, tenant: str = TENANT) -> None:
        self.backend = backend
        self.tenant = tenant
        self.jobs = Jobs(backend, tenant_id=self.tenant, app=APP)
        self.producer = TaskProducer(backend, tenant_id=self.tenant, app=APP)
        self.dispatcher = self.another_dispatcher()
        self._records = TaskRecords(backend)
        self._factory = EventFactory(app=APP, environment="dev", origin="sqs-worker", clock=backend.clock)

    def another_dispatcher(self) -> JobDispatcher:
        return JobDispatcher(self.backend, tenant_id=self.tenant, app=APP)

    def sent(self) -> list[dict[str, Any]]:
        """The messages that workers would get, taken out of the queue."""
        found = []
        queue = self.backend.queue(f"{self.backend.stage_prefix}tasks")
        while deliveries := queue.receive(max_messages=10):
            queue.ack(deliveries)
            found += [json.loads(delivery.body) for delivery in deliveries]
        return found

    def started(self) -> list[str]:
        """The task ids of the messages that workers would get."""
        return sorted(message["taskId"] for message in self.sent())

    def end(self, job_id: str, task_id: str, event_type: str = "Task Completed", **properties: Any) -> JournalEvent:
        """A worker ends the task; dispatchers are woken by it."""
        request_id = f"{job_id}.{task_id}"
        held = self._records.read(self.tenant, request_id)
        assert held is not None
        given: dict[str, dict[str, Any]] = {
            "Task Completed": {"output": None, "durationMs": 1, "exitCode": 0},
            "Task Failed": {"error": "no", "errorCategory": "auth", "retryCount": 1, "source": "worker"},
            "Task Timeout": {"timeoutMs": 1, "elapsedMs": 2, "signal": "SIGTERM"},
        }
        task = TaskId(tenant_id=self.tenant, request_id=request_id, run=held.lease.run, job_id=job_id, task_id=task_id)
        event = self._factory.event(event_type, task, **{**given[event_type], **properties})
        assert self._records.write(self.tenant, request_id, held.lease.settled(event), [event], expect=held).ok
        return event

    def wake(self) -> None:
        """Let the dispatcher handle all wake-ups."""
        while self.dispatcher.run_once():
            continue

    def wake_ups(self) -> Queue:
        """The queue that wakes dispatchers."""
        return self.backend.queue(f"{self.backend.stage_prefix}tasks-dispatch")

    def sleep_through(self) -> None:
        """Lose all wake-ups."""
        queue = self.wake_ups()
        while deliveries := queue.receive(max_messages=10):
            queue.ack(deliveries)

    def complete(self, job_id: str, *task_ids: str) -> None:
        """Workers complete the tasks, one after the other."""
        for task_id in task_ids:
            self.end(job_id, task_id, output=f"out of {task_id}")
            self.wake()

    def events(self, job_id: str, event_type: str | None = None) -> list[JournalEvent]:
        """The job's own events, in order."""
        found = every_event(self.backend.journal(), "GSI1", tenant=self.tenant, entity=("JOB", job_id))
        return [event for event in found if event_type in (None, event.event_type)]

    def of_task(self, job_id: str, task_id: str) -> list[JournalEvent]:
        """The events of one task of the job, in order."""
        return task_history(self.backend.journal(), self.tenant, f"{job_id}.{task_id}")

    def types(self, job_id: str) -> list[str]:
        return [event.event_type for event in self.events(job_id)]

    def status(self, job_id: str) -> dict[str, Any]:
        found = self.jobs.job_status(job_id)
        assert found is not None
        return found.to_dict()

    def states(self, job_id: str) -> dict[str, str]:
        """The status of each task."""
        return {task["taskId"]: task["status"] for task in self.status(job_id)["tasks"]}
