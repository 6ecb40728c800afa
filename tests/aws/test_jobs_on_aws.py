"""Jobs on emulated AWS keep the rules of jobs: items and journal in the events table, queues of a stage."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.jobs.dispatcher_rules import DispatcherRules
from tests.jobs.fault_rules import DispatcherFaultRules
from tests.jobs.floor import APP, SEED, TENANT, Floor
from tests.jobs.rules import JobRules
from tests.jobs.store_tasks import PAGE
from tests.tasks.benches import eventually

import postroad
from postroad import Backend
from postroad.connections.aws import AwsConnection
from postroad.jobs.roles import duties
from postroad.tasks import TaskWorker, ensure_queues
from postroad.tasks.roles import Rounds

pytestmark = pytest.mark.aws


@pytest.fixture(scope="module")
def url(ministack_url: str) -> str:
    """One stage for all rules; each of them has a tenant of its own."""
    return f"aws://us-east-1?endpoint_url={ministack_url}&stage=s-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as opened:
        opened.journal().init()
        ensure_queues(opened)
        yield opened


@pytest.fixture
def floor(backend: Backend, unique: Callable[[str], str]) -> Floor:
    floor = Floor(backend, unique("tenant"))
    floor.sent()
    floor.sleep_through()
    return floor


class TestJobsOnAws(JobRules):
    races = 2
    crowd = 8


class TestDispatchersOnAws(DispatcherRules):
    pass


class TestDispatchersThatDieOnAws(DispatcherFaultRules):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("emulator", ["ministack", "moto"])
def test_the_whole_job_of_the_seed_is_run_by_workers_and_dispatchers(
    request: pytest.FixtureRequest, emulator: str, unique: Callable[[str], str]
) -> None:
    endpoint, bucket = request.getfixturevalue(f"{emulator}_url"), unique("overflow")
    connection: AwsConnection = request.getfixturevalue("aws" if emulator == "ministack" else "moto_aws")
    connection.s3.create_bucket(Bucket=bucket)
    place = f"aws://us-east-1?endpoint_url={endpoint}&stage={unique('s')}&bucket={bucket}"
    with postroad.connect(place) as backend:
        backend.journal().init()
        ensure_queues(backend)
        floor = Floor(backend)
        floor.jobs.submit_job(SEED, job_id="job-456", request_id="req-789")

        worker = TaskWorker(backend, imports=("tests.jobs.store_tasks",), tenant_id=TENANT, app=APP, wait=1.0)
        with Rounds(duties(backend, tenant_id=TENANT, app=APP)), ThreadPoolExecutor(1) as thread:
            running = thread.submit(worker.run)
            try:
                eventually(lambda: "Job Completed" in floor.types("job-456"), seconds=60)
            finally:
                worker.stop()
                running.result()

        assert floor.status("job-456")["progress"]["completed"] == 5
        assert floor.types("job-456") == ["Job Created", "Job Completed"]
        for task in SEED:
            events = floor.of_task("job-456", task["taskId"])
            assert [event.event_type for event in events] == [
                "Task Pending", "Task Processing Started", "Task Completed",
            ]  # fmt: skip
        assert floor.of_task("job-456", "task-E")[-1].properties["output"] == {
            "task-C": {"style": "modern", "of": "store-123", "read": len(PAGE)}, "task-D": {"of": "store-123"},
        }  # fmt: skip
