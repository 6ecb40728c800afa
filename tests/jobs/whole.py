"""A whole job with real workers and dispatchers, on any store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.jobs.floor import APP, SEED, TENANT, Floor
from tests.jobs.store_tasks import PAGE
from tests.waiting import eventually

from postroad import Backend
from postroad.jobs.dispatcher import worker_roles
from postroad.tasks import TaskWorker
from postroad.tasks.threads import RoleThreads


def run_the_example(backend: Backend, *, wait: float) -> None:
    """Submit the example job, let a worker and a dispatcher bring it to its end, and look at what they wrote."""
    floor = Floor(backend)
    floor.jobs.submit_job(SEED, job_id="job-456", request_id="req-789")
    worker = TaskWorker(backend, imports=("tests.jobs.store_tasks",), tenant_id=TENANT, app=APP, wait=wait)
    with RoleThreads(worker_roles(backend, tenant_id=TENANT, app=APP)), ThreadPoolExecutor(1) as thread:
        running = thread.submit(worker.run)
        try:
            eventually(lambda: "Job Completed" in floor.types("job-456"))
        finally:
            worker.stop()
            running.result()

    assert floor.status("job-456")["progress"]["completed"] == 5
    assert floor.types("job-456") == ["Job Created", "Job Completed"]
    for task in SEED:
        types = [event.event_type for event in floor.of_task("job-456", task["taskId"])]
        assert types == ["Task Pending", "Task Processing Started", "Task Completed"]
    assert floor.of_task("job-456", "task-E")[-1].properties["output"] == {
        "task-C": {"style": "modern", "of": "store-123", "read": len(PAGE)},
        "task-D": {"of": "store-123"},
    }
