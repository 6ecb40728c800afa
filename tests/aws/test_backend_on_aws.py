"""`connect("aws://…")` stands on AWS as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.wiring.mistakes import refuse_arguments_of_another_type

import postroad
from postroad.connections.aws import AwsConnection
from postroad.errors import NotFound
from postroad.operations import why
from postroad.outbox import DomainEvent, Outbox

pytestmark = pytest.mark.aws


@pytest.fixture
def backend(aws: AwsConnection, ministack_url: str, unique: Callable[[str], str]) -> Iterator[postroad.Backend]:
    bucket = unique("blobs")
    aws.s3.create_bucket(Bucket=bucket)
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}&bucket={bucket}") as backend:
        yield backend


def test_a_published_message_reaches_a_subscribed_queue(
    backend: postroad.Backend, unique: Callable[[str], str]
) -> None:
    queue = backend.create_queue(postroad.QueueSpec(unique("orders")))
    topic = backend.topic(unique("news"))
    topic.subscribe(queue)

    [published] = topic.publish([postroad.OutgoingMessage("hello")])
    received = queue.receive(wait=5)

    assert published.ok
    assert [delivery.body for delivery in received] == [b"hello"]
    assert queue.ack(received)[0].ok


def test_a_body_above_the_limit_travels_through_s3(backend: postroad.Backend, unique: Callable[[str], str]) -> None:
    queue = backend.create_queue(postroad.QueueSpec(unique("orders")))
    body = "x" * 1_500_000

    [sent] = queue.send([postroad.OutgoingMessage(body)])
    [received] = queue.receive(wait=5)

    assert sent.ok
    assert received.body == body.encode()


def test_arguments_of_another_type_are_refused_by_their_field(
    backend: postroad.Backend, unique: Callable[[str], str]
) -> None:
    topic = backend.topic(unique("news"))

    refuse_arguments_of_another_type(backend, topic)

    assert topic.subscriptions() == []


def test_why_knows_the_outbox_and_says_what_it_cannot_know(
    backend: postroad.Backend, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = backend.create_queue(postroad.QueueSpec(unique("orders")))
    [sent] = queue.send([postroad.OutgoingMessage("hello")])
    dsn = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.setenv("POSTROAD_OUTBOX_DSN", dsn)
    with Outbox.open(dsn) as outbox:
        outbox.init()
        with outbox.database.transaction() as session:
            event_id = outbox.add(session.connection, DomainEvent(type="a", key={"id": "1"}, payload={}))

    story = why(backend, str(event_id), tenant="default", app="postroad")

    assert backend.message_history() is None
    assert story.summary.endswith("on AWS only what Postroad itself saw is known")
    with pytest.raises(NotFound, match="there is no DynamoDB table 'events-dev'") as unknown:
        why(backend, str(sent.message_id), tenant="default", app="postroad")
    assert "SQS" in unknown.value.remedy
