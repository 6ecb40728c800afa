"""Jobs on emulated AWS keep the rules of jobs: items and journal in the events table, queues of a stage."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.jobs.dispatcher_rules import DispatcherRules
from tests.jobs.fault_rules import DispatcherFaultRules
from tests.jobs.floor import Floor
from tests.jobs.rules import JobRules
from tests.jobs.whole import run_the_example
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.connections.aws import AwsConnection
from postroad.jobs import JobDispatcher, Jobs, dispatcher as roles_of_jobs
from postroad.jobs.dispatcher import worker_roles
from postroad.journal import JournalEvent
from postroad.journal.events import TaskCompleted
from postroad.tasks import ensure_queues
from postroad.tasks.event_publisher import EventPublisher
from postroad.tasks.reconciler import ReconcilerLease
from postroad.tasks.worker import WorkerConfig

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
def test_the_example_job_is_run_by_workers_and_dispatchers(
    request: pytest.FixtureRequest, emulator: str, unique: Callable[[str], str]
) -> None:
    endpoint, bucket = request.getfixturevalue(f"{emulator}_url"), unique("overflow")
    connection: AwsConnection = request.getfixturevalue("aws" if emulator == "ministack" else "moto_aws")
    connection.s3.create_bucket(Bucket=bucket)
    place = f"aws://us-east-1?endpoint_url={endpoint}&stage={unique('s')}&bucket={bucket}"
    with postroad.connect(place) as backend:
        backend.journal().init()
        ensure_queues(backend)
        run_the_example(backend, wait=1.0)


@contextmanager
def counted(backend: Backend) -> Iterator[list[str]]:
    """The operations that the backend asks AWS for."""
    seen: list[str] = []
    installation: Any = backend._installation
    clients = [installation._connection.sqs, installation._connection.dynamodb]
    for client in clients:
        client.meta.events.register("before-call", lambda model, **_: seen.append(model.name), unique_id="test-calls")
    yield seen
    for client in clients:
        client.meta.events.unregister("before-call", unique_id="test-calls")


def a_wide_job(tenant: str, backend: Backend) -> Jobs:
    """A job `wide` of one task that is pending and ninety-nine that wait for it."""
    jobs = Jobs(backend, tenant_id=tenant, app="shop")
    tasks = [{"taskId": f"t{number}", "name": "noop", "dependsOn": ["t0"] if number else []} for number in range(100)]
    jobs.submit_job(tasks[:50], job_id="wide")
    jobs.add_tasks("wide", tasks[50:])
    return jobs


def test_the_status_of_a_hundred_tasks_takes_three_queries(backend: Backend, unique: Callable[[str], str]) -> None:
    tenant = unique("tenant")
    a_wide_job(tenant, backend)

    with counted(backend) as calls:
        found = Jobs(backend, tenant_id=tenant, app="shop").job_status("wide")

    assert found is not None
    assert found.progress | {"waiting": 0, "pending": 0} == dict.fromkeys(found.progress, 0)
    assert (found.progress["waiting"], found.progress["pending"]) == (99, 1)
    assert calls.count("Query") <= 3


def test_a_look_at_a_job_does_not_pay_for_tasks_that_wait(backend: Backend, unique: Callable[[str], str]) -> None:
    tenant = unique("tenant")
    a_wide_job(tenant, backend)
    dispatcher = JobDispatcher(backend, tenant_id=tenant, app="shop")
    dispatcher.dispatch("wide")

    with counted(backend) as calls:
        dispatcher.dispatch("wide")

    assert len(calls) <= 5


def test_an_idle_worker_makes_at_most_ten_requests_a_minute(
    ministack_url: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = roles_of_jobs._FAR_WAKE_UP_WAIT
    monkeypatch.setattr(roles_of_jobs, "_FAR_WAKE_UP_WAIT", 1.0)
    backend = postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}&stage={unique('s')}")
    backend.journal().init()
    ensure_queues(backend)
    roles = worker_roles(backend, tenant_id=unique("tenant"), app="shop")
    per_minute = 60 / WorkerConfig().wait
    for role in roles:
        role.run_once()

        with counted(backend) as calls:
            role.run_once()

        per_minute += len(calls) * 60 / (role.every or wait)

    backend.close()
    assert per_minute <= 10


def test_one_worker_of_a_tenant_reconciles_and_the_next_follows_at_once_when_it_stops(
    backend: Backend, unique: Callable[[str], str]
) -> None:
    tenant = unique("tenant")
    first, second = (ReconcilerLease(backend, tenant=tenant, queue="tasks", seconds=600) for _ in range(2))

    assert (first.hold(), second.hold(), first.hold()) == (True, False, True)
    first.give_up()
    assert (second.hold(), first.hold()) == (True, False)


def test_a_reconciler_that_died_is_followed_when_its_lease_ends(backend: Backend, unique: Callable[[str], str]) -> None:
    tenant = unique("tenant")
    dead = ReconcilerLease(backend, tenant=tenant, queue="tasks", seconds=0.0)
    dead.hold()

    assert ReconcilerLease(backend, tenant=tenant, queue="tasks", seconds=600).hold()


def test_a_bus_hears_how_tasks_ended(backend: Backend, unique: Callable[[str], str]) -> None:
    tenant, received = unique("tenant"), list[TaskCompleted]()
    publisher = EventPublisher(backend, tenant=tenant)
    properties = {"requestId": "r", "output": [1], "durationMs": 1, "exitCode": 0}
    ended = JournalEvent.create("Task Completed", tenant_id=tenant, entity_id="r", properties=properties)
    with backend.bus("tasks", unique("g"), config=postroad.BusConfig(wait_time_seconds=1)) as bus:
        bus.subscribe(TaskCompleted, received.append)
        backend.journal().append([ended])

        assert (publisher.run_once(), publisher.run_once()) == (1, 0)

        eventually(lambda: bus.receive_once() or received)
    assert [(event.request_id, event.output) for event in received] == [("r", [1])]
