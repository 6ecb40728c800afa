"""What is wrong with the way to AWS is told in Postroad's words, with what to do."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.aws.endpoint import Answer, Endpoint, all_sent, error

from postroad.connections.aws import AwsConnection
from postroad.errors import (
    ConfigurationError,
    InvalidInput,
    NotPermitted,
    OutcomeUnknown,
    PostroadError,
    Throttled,
    Unavailable,
)
from postroad.queues import OutgoingMessage
from postroad.queues.sqs import SQSQueue, SQSQueues


def queue_at(connection: AwsConnection, url: str) -> SQSQueue:
    return SQSQueues(connection).queue(f"{url}/123456789012/orders")


def error_of_a_send(connection: AwsConnection, scripted: Endpoint, *answers: Any) -> Exception | None:
    scripted.on("GetQueueAttributes", Answer({"Attributes": {}}))
    scripted.on("SendMessageBatch", *answers)
    [result] = queue_at(connection, scripted.url).send([OutgoingMessage("hello")])
    assert not result.ok
    return result.error


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error("RequestThrottled", 400), Throttled),
        (error("ThrottlingException", 400), Throttled),
        (error("ServiceUnavailable", 503), Unavailable),
        (error("OverLimit", 403), Throttled),
        (error("AccessDenied", 403), NotPermitted),
        (error("InternalError", 500), OutcomeUnknown),
        (Answer(silent=True), OutcomeUnknown),
        (Answer(cut=True), OutcomeUnknown),
    ],
    ids=["throttled", "throttling", "503", "over limit", "denied", "500", "no answer", "cut off"],
)
def test_a_failed_send_says_whether_it_may_have_had_its_effect(
    scripted: Endpoint, scripted_aws: AwsConnection, answer: Answer, expected: type[PostroadError]
) -> None:
    told = error_of_a_send(scripted_aws, scripted, answer)

    assert type(told) is expected
    assert told.__cause__ is not None


def test_a_refusal_after_an_unanswered_attempt_does_not_claim_that_nothing_happened(scripted: Endpoint) -> None:
    connection = AwsConnection("us-east-1", scripted.url, read_timeout=0.3, attempts=2)

    told = error_of_a_send(connection, scripted, Answer(silent=True), error("ThrottlingException"))
    connection.close()

    assert type(told) is OutcomeUnknown
    assert len(scripted.calls("SendMessageBatch")) == 2


def test_a_refused_connection_surely_had_no_effect(unused_port: int) -> None:
    connection = AwsConnection("us-east-1", f"http://127.0.0.1:{unused_port}", attempts=1)

    with pytest.raises(Unavailable):
        queue_at(connection, f"http://127.0.0.1:{unused_port}").receive()
    connection.close()


def test_a_throttled_call_is_tried_again(scripted: Endpoint) -> None:
    connection = AwsConnection("us-east-1", scripted.url, attempts=3)
    scripted.on("GetQueueAttributes", Answer({"Attributes": {}}))
    scripted.on("SendMessageBatch", error("ThrottlingException"), all_sent)

    [result] = queue_at(connection, scripted.url).send([OutgoingMessage("hello")])
    connection.close()

    assert result.ok


def test_an_argument_that_aws_refuses_is_invalid_input(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    scripted.on("ReceiveMessage", error("InvalidParameterValue", message="Reason: no such value"))

    with pytest.raises(InvalidInput, match="no such value"):
        queue_at(scripted_aws, scripted.url).receive()


def test_a_denied_call_names_the_permission_as_the_remedy(scripted: Endpoint, scripted_aws: AwsConnection) -> None:
    scripted.on("ReceiveMessage", error("AccessDenied", 403, message="not authorized to perform sqs:ReceiveMessage"))

    with pytest.raises(Unavailable, match="sqs:ReceiveMessage") as refused:
        queue_at(scripted_aws, scripted.url).receive()

    assert "permission" in refused.value.remedy


def test_a_missing_region_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    with pytest.raises(ConfigurationError) as refused:
        AwsConnection()

    assert refused.value.field == "region"
    assert "aws://" in refused.value.remedy


def test_missing_credentials_are_told_with_their_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scripted: Endpoint
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    connection = AwsConnection("us-east-1", scripted.url)

    with pytest.raises(ConfigurationError) as refused:
        queue_at(connection, scripted.url).receive()
    connection.close()

    assert "AWS_ACCESS_KEY_ID" in refused.value.remedy


def test_without_boto3_the_remedy_is_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without_boto3(name: str, *rest: Any, **more: Any) -> Any:
        if name == "boto3":
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_boto3)

    with pytest.raises(ConfigurationError) as refused:
        AwsConnection("us-east-1")

    assert refused.value.remedy == "pip install 'postroad[aws]'"


def test_a_closed_connection_says_so_and_closing_twice_changes_nothing(scripted: Endpoint) -> None:
    connection = AwsConnection("us-east-1", scripted.url)
    connection.close()
    connection.close()

    with pytest.raises(Unavailable, match="closed"):
        queue_at(connection, scripted.url).receive()


def test_threads_share_one_client(scripted: Endpoint) -> None:
    connection = AwsConnection("us-east-1", scripted.url)
    clients: list[object] = []
    threads = [threading.Thread(target=lambda: clients.append(connection.sqs)) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.close()

    assert len(set(map(id, clients))) == 1


def test_a_forked_child_must_connect_again(scripted: Endpoint) -> None:
    connection = AwsConnection("us-east-1", scripted.url)
    reader, writer = multiprocessing.Pipe(duplex=False)

    if (child := os.fork()) == 0:
        try:
            _ = connection.sqs
            writer.send("used")
        except ConfigurationError as error:
            writer.send(error.remedy)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    told = reader.recv()
    for end in (reader, writer):
        end.close()
    connection.close()

    assert told == "Connect again in the child."


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
