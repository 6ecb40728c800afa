"""The adapters of AWS under every fault: what they report is true, and nothing is lost, doubled or out of order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import botocore.retries.standard
import pytest
from tests.memory import memory_items
from tests.waiting import eventually

from postroad.blobs.s3 import S3Blobs
from postroad.clock import SYSTEM_CLOCK
from postroad.connections import aws_calls
from postroad.connections.aws import AwsConnection
from postroad.errors import OutcomeUnknown, PostroadError, QueueNotFound, StorageDamaged, TransportError
from postroad.items.dynamodb import DynamoItems
from postroad.journal.dynamodb import DynamoRecords
from postroad.journal.overflow import Overflow
from postroad.journal.store import StoredJournal
from postroad.queues import OutgoingMessage, Queue, QueueSpec
from postroad.queues.sqs import SQSQueues
from postroad.streams import TRIM_HORIZON, Record
from postroad.streams.kinesis import KinesisStreams
from postroad.testing import FaultProxy
from postroad.testing.journal_queries import pending
from postroad.topics import Topic
from postroad.topics.eventbridge import EventBridgeTopics
from postroad.topics.sns import SNSTopics

pytestmark = pytest.mark.aws
LATE = "hang:0.8"
FAULTS = (
    *("drop_before", "drop_after_apply", "reset_mid_body", LATE, "http_500", "http_503", "throttle"),
    *("partial_batch", "duplicate_request", "truncate", "bad_md5", "forbidden"),
)
BREAK_READS = tuple(fault for fault in FAULTS if fault not in ("partial_batch", "duplicate_request", "bad_md5"))
ONCE = {"once": 1, "always": None}
every_fault = pytest.mark.parametrize("fault", FAULTS)
once_and_always = pytest.mark.parametrize("times", ONCE.values(), ids=ONCE)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_calls, "_FIRST_PAUSE", 0.001)
    backoff: Any = botocore.retries.standard.ExponentialBackoff
    monkeypatch.setattr(backoff, "delay_amount", lambda self, context: 0.0)


@pytest.fixture
def strict(ministack_url: str) -> Iterator[FaultProxy]:
    with FaultProxy(ministack_url, aws_rules=True) as proxy:
        yield proxy


@pytest.fixture
def broken(strict: FaultProxy, request: pytest.FixtureRequest) -> Iterator[AwsConnection]:
    """A connection through the proxy that tries twice and, if the fault is an answer that is late, does not wait."""
    fault = request.node.callspec.params.get("fault", LATE)
    # A busy machine is late too, which must not look like a second fault.
    connection = AwsConnection("us-east-1", strict.url, read_timeout=0.4 if fault == LATE else 30.0, attempts=2)
    yield connection
    connection.close()


@dataclass(frozen=True)
class Sent:
    """What was reported of one thing, and what it says about its effect: True, False or, if it is unknown, None."""

    ok: bool
    error: Exception | None

    @property
    def effect(self) -> bool | None:
        return None if isinstance(self.error, OutcomeUnknown) else self.ok


def attempt(call: Callable[[], Any]) -> Sent:
    """Make a call that may raise only errors of Postroad's."""
    try:
        result = call()
    except PostroadError as error:
        return Sent(ok=False, error=error)
    return Sent(ok=getattr(result, "ok", True), error=getattr(result, "error", None))


def assert_true(reports: Sequence[Any], there: Sequence[bool]) -> None:
    """Check that what is said to be done is there, and what is said to be refused is not."""
    for report, is_there in zip(reports, there, strict=True):
        effect = Sent(ok=report.ok, error=report.error).effect
        assert effect is None or effect is is_there, (report, is_there)


def bodies(queue: Queue) -> list[str]:
    """Receive and ack all that the queue holds."""
    found: list[str] = []
    while deliveries := queue.receive(wait=0):
        found += [delivery.body.decode() for delivery in deliveries]
        queue.ack(deliveries)
    return found


def messages(*bodies: str, fifo: bool) -> list[OutgoingMessage]:
    """Messages of two groups."""
    return [
        OutgoingMessage(body, group="ab"[number % 2] if fifo else None, dedup_id=body if fifo else None)
        for number, body in enumerate(bodies)
    ]


def by_group(found: Sequence[str]) -> dict[int, list[str]]:
    return {lane: [body for body in found if int(body[1:]) % 2 == lane] for lane in (0, 1)}


def assert_all_arrive(send: Callable[[list[OutgoingMessage]], Sequence[Any]], queue: Queue, *, fifo: bool) -> None:
    """Send, repeat what was not sent once the faults are over, and compare with what arrives."""
    names = [f"m{number}" for number in range(6)]
    reports = send(messages(*names, fifo=fifo))
    arrived = bodies(queue)
    assert_true(reports, [name in arrived for name in names])

    left = [name for name, report in zip(names, reports, strict=True) if not report.ok]
    again = {name: message for name, message in zip(names, messages(*names, fifo=fifo), strict=True) if name in left}
    assert all(report.ok for report in send(list(again.values())))

    arrived += bodies(queue)
    assert set(arrived) == set(names)
    if fifo:
        assert by_group(arrived) == by_group(names)


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@once_and_always
@every_fault
def test_sends_are_reported_truly(
    strict: FaultProxy,
    broken: AwsConnection,
    aws: AwsConnection,
    unique: Callable[[str], str],
    fault: str,
    times: int | None,
    fifo: bool,
) -> None:
    name = unique("faults") + (".fifo" if fifo else "")
    queue = SQSQueues(aws).create_queue(QueueSpec(name, fifo=fifo))
    sender = SQSQueues(broken).queue(name)
    strict.add(fault, match="SendMessage*", times=times)

    def send(given: list[OutgoingMessage]) -> Sequence[Any]:
        results = sender.send(given)
        strict.clear()
        return results

    assert_all_arrive(send, queue, fifo=fifo)
    assert strict.injected[fault] >= 1


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_receive_that_fails_never_looks_like_an_empty_queue(
    strict: FaultProxy, broken: AwsConnection, aws: AwsConnection, unique: Callable[[str], str], fifo: bool
) -> None:
    name = unique("faults") + (".fifo" if fifo else "")
    queue = SQSQueues(aws).create_queue(QueueSpec(name, fifo=fifo))
    names = [f"m{number}" for number in range(6)]
    queue.send(messages(*names, fifo=fifo))
    receiver = SQSQueues(broken).queue(name)
    for fault in (*BREAK_READS, "bad_md5"):
        strict.add(fault, match="ReceiveMessage")
        # Without a lease, each fault finds all messages there.
        with pytest.raises(TransportError):
            receiver.receive(visibility=0)
        strict.clear()

    arrived: list[str] = []

    def all_are_there() -> bool:
        arrived.extend(bodies(receiver))
        return len(set(arrived)) == 6

    eventually(all_are_there)

    assert Counter(arrived) == Counter(names)
    if fifo:
        assert by_group(arrived) == by_group(names)


@once_and_always
@every_fault
def test_acks_are_reported_truly(
    strict: FaultProxy,
    broken: AwsConnection,
    aws: AwsConnection,
    unique: Callable[[str], str],
    fault: str,
    times: int | None,
) -> None:
    name = f"{unique('faults')}.fifo"
    queue = SQSQueues(aws).create_queue(QueueSpec(name, fifo=True))
    queue.send(messages("m0", "m1", "m2", "m3", fifo=True))
    receiver = SQSQueues(broken).queue(name)
    deliveries = receiver.receive(visibility=300)
    assert len(deliveries) == 4
    strict.add(fault, match="DeleteMessage*", times=times)

    results = receiver.ack(deliveries)

    left = queue.stats().in_flight
    effects = [Sent(ok=result.ok, error=result.error).effect for result in results]
    assert effects.count(False) <= left <= 4 - effects.count(True)
    strict.clear()
    receiver.ack([each for each, result in zip(deliveries, results, strict=True) if not result.ok])
    assert queue.stats().in_flight == 0


def sns(connection: AwsConnection, *, fifo: bool) -> Callable[[str], Topic]:
    return lambda name: SNSTopics(connection, SQSQueues(connection)).topic(name, fifo=fifo)


def eventbridge(connection: AwsConnection, *, fifo: bool) -> Callable[[str], Topic]:
    return lambda name: EventBridgeTopics(connection, SQSQueues(connection)).topic(name)


@pytest.mark.parametrize(("open_topic", "fifo"), [(sns, True), (eventbridge, False)], ids=["sns-fifo", "eventbridge"])
@once_and_always
@every_fault
def test_publishes_are_reported_truly(
    strict: FaultProxy,
    broken: AwsConnection,
    aws: AwsConnection,
    unique: Callable[[str], str],
    fault: str,
    times: int | None,
    open_topic: Any,
    fifo: bool,
) -> None:
    name = unique("faults") + (".fifo" if fifo else "")
    queue = SQSQueues(aws).create_queue(QueueSpec(name, fifo=fifo))
    open_topic(aws, fifo=fifo)(name).subscribe(queue)
    topic = open_topic(broken, fifo=fifo)(name)
    strict.add(fault, match="Pu[bt][leE]*", times=times)

    def publish(given: list[OutgoingMessage]) -> Sequence[Any]:
        results: Sequence[Any] = topic.publish(given)
        strict.clear()
        return results

    # A topic of its name is made first, by a call that does not match.
    _ = getattr(topic, "arn", None) or getattr(topic, "bus", None)
    assert_all_arrive(publish, queue, fifo=fifo)


@once_and_always
@every_fault
def test_puts_to_a_stream_are_reported_truly(
    strict: FaultProxy,
    broken: AwsConnection,
    aws: AwsConnection,
    unique: Callable[[str], str],
    fault: str,
    times: int | None,
) -> None:
    name = unique("faults")
    stream = KinesisStreams(aws, memory_items(), SYSTEM_CLOCK).stream(name, shards=1)
    [shard] = stream.shards()
    writer = KinesisStreams(broken, memory_items(), SYSTEM_CLOCK).open(name)
    records = [Record("ab"[number % 2], f"m{number}".encode()) for number in range(6)]
    strict.add(fault, match="PutRecords", times=times)

    results = writer.put(records)
    strict.clear()

    stored = [record.data for record in stream.read(shard, after=TRIM_HORIZON)]
    assert_true(results, [record.data in stored for record in records])
    again = [record for record, result in zip(records, results, strict=True) if not result.ok]
    assert all(result.ok for result in writer.put(again))
    first = list(dict.fromkeys(record.data.decode() for record in stream.read(shard, after=TRIM_HORIZON)))
    assert by_group(first) == by_group([f"m{number}" for number in range(6)])


@pytest.fixture(scope="module")
def table(aws: AwsConnection) -> str:
    DynamoRecords(aws, "faults").init()
    return "faults"


@once_and_always
@every_fault
def test_conditional_writes_are_reported_truly(
    strict: FaultProxy,
    broken: AwsConnection,
    aws: AwsConnection,
    table: str,
    unique: Callable[[str], str],
    fault: str,
    times: int | None,
) -> None:
    items, clean = DynamoItems(broken, table), DynamoItems(aws, table)
    fresh, known, doomed = (f"t/{unique(stem)}" for stem in ("fresh", "known", "doomed"))
    for key in (known, doomed):
        clean.put(key, b"old")
    strict.add(fault, match="*Item", times=times)
    reports = [
        attempt(lambda: items.put(fresh, b"new", expect=0)),
        attempt(lambda: items.put(known, b"new", expect=1)),
    ]
    strict.clear()
    strict.add(fault, match="*Item", times=times)
    reports.append(attempt(lambda: items.delete(doomed, expect=1)))
    strict.clear()

    found = [clean.get(key) for key in (fresh, known)]
    assert_true(reports, [*(item is not None and item.value == b"new" for item in found), clean.get(doomed) is None])


@once_and_always
@every_fault
def test_appends_to_the_journal_are_reported_truly(
    strict: FaultProxy,
    broken: AwsConnection,
    aws: AwsConnection,
    table: str,
    unique: Callable[[str], str],
    fault: str,
    times: int | None,
) -> None:
    blobs = S3Blobs(broken, "none")
    journal = StoredJournal(DynamoRecords(broken, table), Overflow(blobs))
    clean = StoredJournal(DynamoRecords(aws, table), Overflow(blobs))
    tenant = unique("tenant")
    events = [pending(f"task-{number}", tenant=tenant) for number in range(3)]
    strict.add(fault, match="PutItem", times=times)

    results = journal.append(events)
    strict.clear()

    found = {event.event_id for event in clean.query("PK", tenant=tenant).events}
    assert_true(results, [event.event_id in found for event in events])
    assert not any(getattr(result, "duplicate", False) for result in results)


@pytest.mark.parametrize("fault", BREAK_READS)
def test_reads_that_fail_never_look_like_nothing(
    strict: FaultProxy,
    broken: AwsConnection,
    aws: AwsConnection,
    table: str,
    unique: Callable[[str], str],
    fault: str,
) -> None:
    tenant, name, bucket = unique("tenant"), unique("faults"), unique("faults")
    DynamoItems(aws, table).put(f"{tenant}/item", b"x")
    stream = KinesisStreams(aws, memory_items(), SYSTEM_CLOCK).stream(name, shards=1)
    stream.put([Record("k", b"x")])
    [shard] = stream.shards()
    queue = SQSQueues(aws).create_queue(QueueSpec(name))
    SNSTopics(aws, SQSQueues(aws)).topic(name).subscribe(queue)
    aws.s3.create_bucket(Bucket=bucket)
    ref = S3Blobs(aws, bucket).put("overflow/a", b"x" * 1_000)
    items, records, queues = DynamoItems(broken, table), DynamoRecords(broken, table), SQSQueues(broken)
    journal = StoredJournal(records, Overflow(S3Blobs(broken, bucket)))
    reader = KinesisStreams(broken, memory_items(), SYSTEM_CLOCK).open(name)
    reads: list[Callable[[], object]] = [
        lambda: items.get(f"{tenant}/item"),
        lambda: items.scan(f"{tenant}/"),
        lambda: journal.query("PK", tenant=tenant),
        lambda: reader.read(shard, after=TRIM_HORIZON),
        lambda: reader.shards(),
        lambda: queues.queues(),
        lambda: queues.queue(name),
        lambda: queues.queue(queue.url).overview(),
        lambda: queues.queue(queue.url).stats(),
        lambda: SNSTopics(broken, queues).topic(name).subscriptions(),
        lambda: EventBridgeTopics(broken, queues).topics(),
        lambda: S3Blobs(broken, bucket).get(ref),
    ]
    strict.add(fault)

    for number, read in enumerate(reads):
        with pytest.raises((TransportError, StorageDamaged)):
            pytest.fail(f"read {number} returned {read()!r}")


@pytest.mark.parametrize("fault", [fault for fault in BREAK_READS if fault != "forbidden"])
def test_a_read_that_fails_once_is_repeated(
    strict: FaultProxy, aws: AwsConnection, table: str, unique: Callable[[str], str], fault: str
) -> None:
    bucket = unique("faults")
    aws.s3.create_bucket(Bucket=bucket)
    ref = S3Blobs(aws, bucket).put("overflow/a", b"x" * 1_000)
    DynamoItems(aws, table).put(f"{bucket}/item", b"x")
    patient = AwsConnection("us-east-1", strict.url, read_timeout=0.4, attempts=5)

    strict.add(fault, times=1)
    found = DynamoItems(patient, table).get(f"{bucket}/item")
    strict.add(fault, times=1)
    data = S3Blobs(patient, bucket).get(ref)

    assert found is not None
    assert data == b"x" * 1_000
    patient.close()


@once_and_always
@every_fault
def test_blobs_are_reported_truly(
    strict: FaultProxy,
    broken: AwsConnection,
    aws: AwsConnection,
    unique: Callable[[str], str],
    fault: str,
    times: int | None,
) -> None:
    bucket = unique("faults")
    aws.s3.create_bucket(Bucket=bucket)
    blobs, clean = S3Blobs(broken, bucket), S3Blobs(aws, bucket)
    old = clean.put("overflow/old", b"x" * 100)
    strict.add(fault, match="*/overflow/*", times=times)

    reports = [attempt(lambda: blobs.put("overflow/new", b"y" * 100)), attempt(lambda: blobs.delete(old))]
    strict.clear()

    listed = {found["Key"] for found in aws.s3.list_objects_v2(Bucket=bucket).get("Contents", ())}
    assert_true(reports, ["overflow/new" in listed, "overflow/old" not in listed])


@pytest.mark.parametrize("fault", ["drop_after_apply", "reset_mid_body", LATE])
def test_a_queue_whose_deletion_lost_its_answer_is_deleted(
    strict: FaultProxy, broken: AwsConnection, aws: AwsConnection, unique: Callable[[str], str], fault: str
) -> None:
    name = unique("faults")
    SQSQueues(aws).create_queue(QueueSpec(name))
    strict.add(fault, match="DeleteQueue", times=1)

    SQSQueues(broken).delete_queue(name)

    with pytest.raises(QueueNotFound):
        SQSQueues(aws).queue(name)
