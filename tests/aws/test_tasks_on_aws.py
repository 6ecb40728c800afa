"""Tasks on emulated AWS: SQS queues of a stage, leases and journal in its events table."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench, is_alive, lines
from tests.tasks.processes import worker
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.connections.aws import AwsConnection
from postroad.errors import ConfigurationError, Conflict, QueueNotFound, Unavailable
from postroad.jobs import JobDispatcher
from postroad.journal import AppendResult, JournalEvent
from postroad.journal.states import TERMINAL
from postroad.lambdas import dlq_processor
from postroad.tasks import EventFactory, Reconciler, TaskId, TaskProducer, TaskRecords, ensure_queues
from postroad.tasks.leases import Lease

pytestmark = pytest.mark.aws

SHORT: dict[str, Any] = {"visibility_extension": 2.0, "extension_interval": 0.5, "wait": 1.0}


@pytest.fixture
def stage(unique: Callable[[str], str]) -> str:
    return unique("stage")


@pytest.fixture
def url(stage: str, ministack_url: str, aws: AwsConnection, unique: Callable[[str], str]) -> str:
    bucket = unique("overflow")
    aws.s3.create_bucket(Bucket=bucket)
    return f"aws://us-east-1?endpoint_url={ministack_url}&stage={stage}&bucket={bucket}"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as opened:
        opened.journal().init()
        ensure_queues(opened)
        yield opened


@pytest.fixture
def bench(backend: Backend) -> Bench:
    return Bench(backend)


def test_the_queues_begin_with_the_stage_and_are_never_made_at_run_time(url: str, stage: str) -> None:
    with postroad.connect(url) as backend:
        with pytest.raises(QueueNotFound) as missing:
            TaskProducer(backend, tenant_id=TENANT, app=APP).submit("echo")
        with pytest.raises(QueueNotFound) as other:
            JobDispatcher(backend, queue="other", tenant_id=TENANT, app=APP).run_once()

        assert f'"{stage}-tasks"' in str(missing.value)
        assert "`postroad task init`" in missing.value.remedy
        assert "`postroad task init --queue other`" in other.value.remedy
        ensure_queues(backend)

        assert {f"{stage}-tasks", f"{stage}-tasks-dlq", f"{stage}-tasks-dispatch"} <= set(backend.queues())


def test_tasks_complete_fail_and_are_retried(bench: Bench) -> None:
    producer = bench.producer
    done = producer.submit("echo", {"n": 1}, request_id="done")
    failed = producer.submit("fail-with", {"type": "ValueError"}, request_id="failed")
    again = producer.submit("retry-until", {"attempt": 2}, request_id="again")
    spent = producer.submit("fail-with", {"type": "ConnectionResetError"}, request_id="spent")
    large = producer.submit("return-megabytes", {"size": 700_000}, request_id="large")

    bench.work(max_attempts=2, **SHORT)
    bench.bury()

    eventually(lambda: bench.state("spent").state == "failed")
    assert bench.state(done.request_id).output == {"n": 1}
    assert bench.state(failed.request_id).error_category == "validation"
    assert bench.state(again.request_id).output == {"attempt": 2}
    assert bench.state(spent.request_id).error_category == "max-retries"
    assert bench.state(large.request_id).output == "x" * 700_000
    assert producer.submit("echo", {"n": 1}, request_id="done").created is False
    with pytest.raises(Conflict):
        producer.submit("echo", {"n": 2}, request_id="done")
    assert producer.retry("failed").run == 2
    assert producer.cancel("failed") is True
    assert Reconciler(bench.backend, tenant_id=TENANT, app=APP, stale_after=0).run_once() == 0


def test_a_lease_lies_in_the_events_table_without_index_keys(bench: Bench, stage: str, aws: AwsConnection) -> None:
    bench.producer.submit("echo", request_id="r1")

    key = {"PK": {"S": f"TENANT#{TENANT}"}, "SK": {"S": "LEASE#TASK#r1"}}
    item = aws.dynamodb.get_item(TableName=f"events-{stage}", Key=key)["Item"]

    assert not any(name.startswith("GSI") for name in item)
    lease = json.loads(bytes(item["value"]["B"]))
    assert lease["sentAt"] > 10**12


def test_fifty_submits_of_one_request_at_once_are_one_run(bench: Bench) -> None:
    created: list[bool] = []
    barrier = threading.Barrier(50)

    def submit() -> None:
        barrier.wait()
        created.append(bench.producer.submit("echo", {"n": 1}, request_id="same").created)

    threads = [threading.Thread(target=submit) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(created) == [False] * 49 + [True]
    assert bench.types("same") == ["Task Pending"]
    assert bench.backend.queue(f"{bench.backend.stage}-tasks").stats().visible == 1


def test_without_a_bucket_a_large_result_fails_its_task_and_does_not_run_again(url: str, bench: Bench) -> None:
    with postroad.connect(url.partition("&bucket=")[0]) as backend:
        bare = Bench(backend)
        handle = bare.producer.submit("return-megabytes", {"size": 300_000})
        bare.work(**SHORT)

    state = bench.state(handle.request_id)
    assert (state.state, state.attempt, state.error_category) == ("failed", 1, "validation")


class Down:
    """A journal that takes nothing."""

    def append(self, events: Sequence[JournalEvent]) -> list[AppendResult]:
        raise Unavailable("no journal at the moment")


def test_what_a_lease_owes_in_a_blob_is_not_taken_for_recorded_without_the_bucket(url: str, bench: Bench) -> None:
    factory = EventFactory(app=APP, environment="dev", origin="sqs-worker", clock=bench.backend.clock)
    task = TaskId(tenant_id=TENANT, request_id="r1", run=1)
    event = factory.event("Task Completed", task, output="x" * 300_000, durationMs=1, exitCode=0)
    TaskRecords(bench.backend, Down()).write(TENANT, "r1", Lease().settled(event), [event], expect=None)

    held = TaskRecords(bench.backend).read(TENANT, "r1")
    assert held is not None
    with postroad.connect(url.partition("&bucket=")[0]) as bare:
        with pytest.raises(ConfigurationError, match="bucket"):
            TaskRecords(bare).record_owed(held)

    assert bench.types("r1") == []
    assert TaskRecords(bench.backend).record_owed(held) is True
    assert bench.state("r1").output == "x" * 300_000


@pytest.mark.slow
def test_a_killed_workers_task_runs_again_with_a_higher_token(bench: Bench, url: str, tmp_path: Path) -> None:
    notes, go = tmp_path / "notes", tmp_path / "go"
    handle = bench.producer.submit("wait-for-file", {"notes": str(notes), "until": str(go)})
    with worker(url, **SHORT) as first:
        eventually(lambda: lines(notes))
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: not is_alive(int(lines(notes)[0].split()[1])))
    go.touch()

    bench.work(**SHORT)

    state = bench.state(handle.request_id)
    assert (state.state, state.attempt, state.output) == ("completed", 2, {"token": 2})
    assert sum(kind in TERMINAL for kind in bench.types(handle.request_id)) == 1


@pytest.mark.slow
def test_a_stopped_worker_hands_its_task_back(bench: Bench, url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    handle = bench.producer.submit("sleep", {"notes": str(notes)})
    with worker(url, drain_timeout=0, **SHORT) as running:
        eventually(lambda: lines(notes))
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) == 0

    assert bench.types(handle.request_id)[-1] == "Task Interrupted"
    assert bench.backend.queue(f"{bench.backend.stage}-tasks").stats().visible == 1


def test_the_function_of_the_dead_letters_ends_runs_and_leaves_what_names_no_task(
    bench: Bench, stage: str, ministack_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "POSTROAD_STAGE": stage,
        "EVENTS_TABLE": f"events-{stage}",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": ministack_url,
        "POSTROAD_TENANT": TENANT,
    }.items():
        monkeypatch.setenv(name, value)
    bench.producer.submit("echo", request_id="r1")

    def record(message_id: str, body: str) -> dict[str, Any]:
        return {
            "messageId": message_id,
            "receiptHandle": f"receipt-{message_id}",
            "body": body,
            "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"},
            "messageAttributes": {"tenantId": {"stringValue": TENANT, "dataType": "String"}},
        }

    body = json.dumps({"requestId": "r1", "name": "echo", "input": {}, "run": 1})
    answer = dlq_processor.handler({"Records": [record("a", body), record("b", "not a task"), record("c", body)]})

    assert answer == {"batchItemFailures": [{"itemIdentifier": "b"}]}
    assert bench.types("r1") == ["Task Pending", "Task Failed"]
    failed = bench.last("r1", "Task Failed")
    assert (failed.properties["source"], failed.properties["errorCategory"]) == ("dlq", "max-retries")
    assert failed.context["environment"] == stage
