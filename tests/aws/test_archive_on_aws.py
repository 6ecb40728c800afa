"""The archive of a topic on AWS: from SNS through SQS into Kinesis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import postroad
from postroad import OutgoingMessage
from postroad.connections.aws import AwsConnection

pytestmark = pytest.mark.aws


@postroad.event(name="tests.archive.aws:Placed")
class Placed:
    number: int


def test_what_is_published_is_archived_and_replayed_once(
    aws: AwsConnection, ministack_url: str, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        archive = backend.archive(topic)
        bodies = [
            postroad.codec.encode(postroad.codec.wrap(Placed(number), publisher_id="shop")) for number in range(12)
        ]
        backend.topic(topic).publish([OutgoingMessage(body) for body in [*bodies, bodies[0]]])

        archived = 0
        while archived < 13 and (found := archive.run_once()):
            archived += found
        seen: list[Placed] = []
        report = archive.replay(seen.append)

    assert archived == 13
    assert sorted(event.number for event in seen) == list(range(12))
    assert (report.replayed, report.duplicates, report.failed) == (12, 1, 0)
