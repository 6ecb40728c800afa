"""Jobs on emulated AWS keep the rules of jobs: items and journal in the events table, queues of a stage."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.jobs.dispatcher_rules import DispatcherRules
from tests.jobs.fault_rules import DispatcherFaultRules
from tests.jobs.floor import Floor
from tests.jobs.rules import JobRules
from tests.jobs.whole import run_the_example

import postroad
from postroad import Backend
from postroad.connections.aws import AwsConnection
from postroad.tasks import ensure_queues

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
