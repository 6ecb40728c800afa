"""The functions behind tasks and jobs, called with what EventBridge and SQS hand to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.jobs.floor import APP, SEED, TENANT, Floor
from tests.jobs.store_tasks import PAGE
from tests.tasks.webhooks import Receiver, receiving
from tests.waiting import eventually

import postroad
from postroad import Backend, OutgoingMessage, QueueSpec
from postroad.connections.aws import AwsConnection
from postroad.errors import InvalidEvent
from postroad.journal import JournalEvent
from postroad.lambdas import dispatcher, dlq_processor, eventbridge_dlq_alert, health_check, save_event
from postroad.tasks import TaskProducer, TaskWorker, ensure_queues

pytestmark = pytest.mark.aws


@pytest.fixture
def stage(unique: Callable[[str], str], aws: AwsConnection, ministack_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stage as the environment of its functions names it."""
    stage, bucket = unique("s"), unique("overflow")
    aws.s3.create_bucket(Bucket=bucket)
    for name, value in {
        "POSTROAD_STAGE": stage,
        "POSTROAD_TENANT": TENANT,
        "POSTROAD_APP": APP,
        "EVENTS_TABLE": f"events-{stage}",
        "EVENTS_BUCKET": bucket,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": ministack_url,
    }.items():
        monkeypatch.setenv(name, value)
    return stage


@pytest.fixture
def backend(stage: str) -> Iterator[Backend]:
    with postroad.connect("aws://us-east-1") as opened:
        opened.journal().init()
        ensure_queues(opened)
        yield opened


@pytest.fixture
def floor(backend: Backend) -> Floor:
    return Floor(backend)


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        monkeypatch.setenv("SLACK_WEBHOOK_URL", receiver.url)
        monkeypatch.setenv("POSTROAD_ALERTS_ALLOW_LOOPBACK", "1")
        yield receiver


class Bus:
    """An event bus, and a queue behind it in the place of each function."""

    def __init__(self, aws: AwsConnection, name: str) -> None:
        self._aws = aws
        self._urls: dict[str, str] = {}
        self.name = name
        aws.events.create_event_bus(Name=name)

    def rule(self, name: str, pattern: dict[str, Any]) -> None:
        url = self._aws.sqs.create_queue(QueueName=f"{self.name}-{name}")["QueueUrl"]
        told = self._aws.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
        self._aws.events.put_rule(Name=f"{self.name}-{name}", EventBusName=self.name, EventPattern=json.dumps(pattern))
        self._aws.events.put_targets(
            Rule=f"{self.name}-{name}", EventBusName=self.name, Targets=[{"Id": name, "Arn": told["QueueArn"]}]
        )
        self._urls[name] = url

    def records(self, name: str) -> list[dict[str, Any]]:
        """What the rule let through, as SQS hands it to a function."""
        return records_of(self._aws, self._urls[name])


def records_of(aws: AwsConnection, url: str) -> list[dict[str, Any]]:
    """All messages of a queue as SQS hands them to a function, which takes them all."""
    found = []
    client: Any = aws.sqs
    while messages := client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0, MessageAttributeNames=["All"], AttributeNames=["All"]
    ).get("Messages"):
        for message in messages:
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            attributes = message.get("MessageAttributes", {})
            found.append(
                {
                    "messageId": message["MessageId"],
                    "receiptHandle": message["ReceiptHandle"],
                    "body": message["Body"],
                    "attributes": message["Attributes"],
                    "messageAttributes": {
                        name: {"stringValue": value["StringValue"], "dataType": value["DataType"]}
                        for name, value in attributes.items()
                    },
                    "eventSource": "aws:sqs",
                    "awsRegion": "us-east-1",
                }
            )
    return found


def envelope(detail: Any, detail_type: str = "log-event") -> dict[str, Any]:
    """An event as EventBridge hands it to a function."""
    return {
        "version": "0",
        "id": "7bf73129-1428-4cd3-a780-95db273d1602",
        "detail-type": detail_type,
        "source": f"task-workflow.{APP}",
        "account": "123456789012",
        "time": "2026-01-03T15:22:19Z",
        "region": "us-east-1",
        "resources": [],
        "detail": detail,
    }


def test_the_end_of_a_task_brings_its_job_forward(floor: Floor, stage: str, aws: AwsConnection) -> None:
    url = aws.sqs.get_queue_url(QueueName=f"{stage}-tasks-dispatch")["QueueUrl"]
    aws.sqs.delete_queue(QueueUrl=url)
    floor.jobs.submit_job(SEED, job_id="j")
    floor.sent()
    ended = floor.end("j", "task-A", output={"storeId": "store-123"})

    answers = [dispatcher.handler(envelope(ended.to_item())) for _ in range(2)]

    assert [sorted(answer["dispatched"]) for answer in answers] == [["task-C", "task-D"], []]
    assert {json.dumps(message["dependencyOutputs"]) for message in floor.sent()} == {
        '{"task-A": {"storeId": "store-123"}}'
    }


def test_an_output_that_left_the_event_for_a_blob_reaches_the_next_task(floor: Floor, stage: str) -> None:
    floor.jobs.submit_job(SEED, job_id="j")
    floor.sent()
    floor.end("j", "task-A", output={"page": PAGE})
    page = floor.backend.journal().query("GSI1", tenant=TENANT, entity=("TASK", "j.task-A"), raw=True)
    detail = {name: value for name, value in page.events[-1].to_item().items() if name != "receivedAt"}
    assert "output" not in detail["properties"]

    dispatcher.handler(envelope(detail))

    assert [len(message["dependencyOutputs"]["task-A"]["page"]) for message in floor.sent()] == [len(PAGE)] * 2


def test_of_a_batch_of_endings_only_what_cannot_be_read_is_answered(floor: Floor) -> None:
    floor.jobs.submit_job(SEED, job_id="j")
    good = floor.end("j", "task-A").to_item()
    bodies = {
        "good": json.dumps(envelope(good)),
        "forged": json.dumps(envelope({**good, "PK": "TENANT#other"})),
        "torn": "{",
        "foreign": "[]",
        "deep": "[" * 100_000,
    }

    answer = dispatcher.handler({"Records": [{"messageId": name, "body": body} for name, body in bodies.items()]})

    failed = [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]
    assert failed == ["forged", "torn", "foreign", "deep"]
    assert floor.states("j")["task-C"] == "pending"


def test_an_event_without_a_detail_is_refused(stage: str, backend: Backend) -> None:
    with pytest.raises(InvalidEvent, match="detail"):
        dispatcher.handler({"source": "somebody"})


def test_a_dead_letter_whose_body_travelled_as_a_blob_ends_its_run(
    backend: Backend, stage: str, aws: AwsConnection
) -> None:
    TaskProducer(backend).submit("echo", {"page": "x" * 1_100_000}, request_id="large")
    url = aws.sqs.get_queue_url(QueueName=f"{stage}-tasks")["QueueUrl"]

    assert dlq_processor.handler({"Records": records_of(aws, url)}) == {"batchItemFailures": []}

    state = TaskProducer(backend).status("large")
    assert state is not None
    assert (state.state, state.error_category) == ("failed", "max-retries")


def test_the_check_of_every_five_minutes_counts_records_and_tells(backend: Backend, webhook: Receiver) -> None:
    now = int(backend.clock.now().timestamp() * 1_000)
    for request_id, minutes in (("busy", 1), ("silent", 7), ("lost", 30), ("endless", 61)):
        started = JournalEvent.create(
            "Task Processing Started",
            tenant_id=TENANT,
            app=APP,
            entity_id=request_id,
            timestamp=now - minutes * 60_000,
            properties={"requestId": request_id, "effectiveUntil": now // 1_000, "workerId": "w", "processId": 1},
        )
        assert backend.journal().append([started])[0].ok
    scheduled = envelope({}, "Scheduled Event") | {"source": "aws.events"}

    summaries = [health_check.handler(scheduled) for _ in range(2)]

    assert summaries == [{"totalProcessing": 4, "healthy": 1, "warning": 1, "critical": 1, "overtime": 1}] * 2
    recorded = backend.journal().query("GSI1", tenant=TENANT, entity=("HEALTH", APP)).events
    assert [event.properties["summary"] for event in recorded] == summaries
    told = [body["text"] for body in webhook.bodies]
    assert [("lost" in text, "endless" in text, "silent" in text) for text in told] == [
        (True, True, False),
        (False, False, True),
    ]


@pytest.fixture
def lost(backend: Backend, stage: str, aws: AwsConnection) -> list[dict[str, Any]]:
    """What EventBridge puts aside when it cannot deliver an event, with why."""
    queue = backend.create_queue(QueueSpec(f"{stage}-eventbridge-target-dlq"))
    event = JournalEvent.create(
        "Task Pending", tenant_id=TENANT, app=APP, entity_id="req-123", properties={"requestId": "req-123", "name": "x"}
    )
    queue.send([OutgoingMessage(json.dumps(envelope(event.to_item())), {"ERROR_CODE": "SDK_CLIENT_ERROR"})])
    url = aws.sqs.get_queue_url(QueueName=f"{stage}-eventbridge-target-dlq")["QueueUrl"]
    return records_of(aws, url)


@pytest.fixture
def archive(stage: str, backend: Backend, aws: AwsConnection, monkeypatch: pytest.MonkeyPatch) -> str:
    backend.create_queue(QueueSpec(f"{stage}-eventbridge-archive"))
    url: str = aws.sqs.get_queue_url(QueueName=f"{stage}-eventbridge-archive")["QueueUrl"]
    monkeypatch.setenv("ARCHIVE_QUEUE_URL", url)
    return url


def test_a_lost_event_is_told_and_kept_with_the_reason(
    lost: list[dict[str, Any]], archive: str, webhook: Receiver, aws: AwsConnection
) -> None:
    answer = eventbridge_dlq_alert.handler({"Records": lost})

    assert answer == {"batchItemFailures": []}
    assert webhook.bodies[0]["text"].splitlines() == [
        ":rotating_light: *EventBridge delivery failure*",
        "*Event type:* Task Pending",
        "*Detail type:* log-event",
        "*Task:* TASK#req-123",
        "*Time:* 2026-01-03T15:22:19Z",
        f"*Message ID:* {lost[0]['messageId']}",
    ]
    (kept,) = records_of(aws, archive)
    assert kept["body"] == lost[0]["body"]
    assert kept["messageAttributes"]["ERROR_CODE"]["stringValue"] == "SDK_CLIENT_ERROR"


def test_a_lost_event_that_nobody_heard_of_stays_and_is_not_kept_twice(
    lost: list[dict[str, Any]], archive: str, webhook: Receiver, aws: AwsConnection
) -> None:
    webhook.status = 429

    answer = eventbridge_dlq_alert.handler({"Records": lost})

    assert answer == {"batchItemFailures": [{"itemIdentifier": lost[0]["messageId"]}]}
    assert records_of(aws, archive) == []


def test_a_lost_event_that_cannot_be_kept_stays(
    lost: list[dict[str, Any]], archive: str, webhook: Receiver, aws: AwsConnection
) -> None:
    aws.sqs.delete_queue(QueueUrl=archive)

    answer = eventbridge_dlq_alert.handler({"Records": lost})

    assert answer == {"batchItemFailures": [{"itemIdentifier": lost[0]["messageId"]}]}


def test_a_wake_up_waits_for_an_output_that_is_still_on_the_bus(
    stage: str, aws: AwsConnection, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus(aws, f"events-{stage}")
    bus.rule("save", {"detail-type": ["log-event"]})
    monkeypatch.setenv("EVENT_BUS_NAME", bus.name)
    with postroad.connect("aws://us-east-1") as through_the_bus:
        floor = Floor(through_the_bus)
        floor.jobs.submit_job(SEED, job_id="j")
        save_event.handler({"Records": bus.records("save")})
        floor.sent()
        floor.end("j", "task-A", output="late")

        assert floor.dispatcher.run_once() == 1
        assert floor.started() == []
        save_event.handler({"Records": bus.records("save")})
        eventually(floor.dispatcher.run_once)

        assert [message["dependencyOutputs"] for message in floor.sent()] == [{"task-A": "late"}] * 2


@pytest.mark.slow
def test_a_whole_job_runs_through_the_bus_and_its_functions(
    stage: str, aws: AwsConnection, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus(aws, f"events-{stage}")
    bus.rule("save", {"detail-type": ["log-event"]})
    endings = ["Task Completed", "Task Failed", "Task Timeout", "Task Cancelled"]
    bus.rule("dispatch", {"detail-type": ["log-event"], "detail": {"eventType": endings}})
    monkeypatch.setenv("EVENT_BUS_NAME", bus.name)

    held: dict[str, list[dict[str, Any]]] = {"save": [], "dispatch": []}

    def deliver() -> bool:
        """Hand what is there to the functions; what they answer comes again, as SQS would have it."""
        for name, function in (("dispatch", dispatcher), ("save", save_event)):
            records = [*held[name], *bus.records(name)]
            answered = function.handler({"Records": records})["batchItemFailures"]
            again = {failure["itemIdentifier"] for failure in answered}
            held[name] = [record for record in records if record["messageId"] in again]
        return True

    with postroad.connect("aws://us-east-1") as through_the_bus:
        floor = Floor(through_the_bus)
        floor.jobs.submit_job(SEED, job_id="job-456")
        worker = TaskWorker(through_the_bus, imports=("tests.jobs.store_tasks",), tenant_id=TENANT, app=APP, wait=1.0)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(worker.run)
            try:
                eventually(lambda: deliver() and "Job Completed" in floor.types("job-456"))
            finally:
                worker.stop()
                running.result()

        assert floor.status("job-456")["progress"]["completed"] == 5
        assert floor.types("job-456") == ["Job Created", "Job Completed"]
        assert floor.of_task("job-456", "task-C")[-1].properties["output"]["read"] == len(PAGE)
