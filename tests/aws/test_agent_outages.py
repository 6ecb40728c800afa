"""An outage behind the functions of agents costs time and no event: the rendered triggers do not give up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.aws.cloud import Cloud, dynamodb_event
from tests.aws.endpoint import Endpoint, error

from postroad.lambdas import aggregator, opened_agents, publisher
from postroad.topology import agents_topology, render_cloudformation

pytestmark = pytest.mark.aws

MORE_THAN_PATIENCE = 12
Handler = Callable[[Mapping[str, Any], object], dict[str, Any]]


@dataclass
class EventSource:
    """Calls a function with the records of a stream as Lambda does, by the settings that a template renders."""

    handler: Handler
    settings: Mapping[str, Any]
    given_up: list[str] = field(default_factory=list)

    def run(self, records: Sequence[Mapping[str, Any]]) -> None:
        left, attempts = list(records), 0
        most = self.settings.get("MaximumRetryAttempts", -1)
        while left:
            batch = left[: self.settings["BatchSize"]]
            done = self._call(batch)
            left = left[done:]
            attempts = attempts + 1 if not done else 0
            if attempts and most != -1 and attempts > most:
                # The destination for failures is told where the records were, never what they said.
                self.given_up += map(_sequence, batch)
                left, attempts = left[len(batch) :], 0

    def _call(self, batch: Sequence[Mapping[str, Any]]) -> int:
        """How many records of the batch are done."""
        answer = self.handler({"Records": batch}, None)
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        places = [place for place, record in enumerate(batch) if _sequence(record) in failed]
        return min(places, default=len(batch))


def _sequence(record: Mapping[str, Any]) -> str:
    if "kinesis" in record:
        return str(record["kinesis"]["sequenceNumber"])
    return str(record["dynamodb"]["SequenceNumber"])


def _rendered(function: str) -> Mapping[str, Any]:
    resources = render_cloudformation(agents_topology())["Resources"]
    [name] = [name for name, each in resources.items() if each["Properties"].get("FunctionName") == function]
    [found] = [
        each["Properties"]
        for each in resources.values()
        if each["Type"] == "AWS::Lambda::EventSourceMapping" and each["Properties"]["FunctionName"] == {"Ref": name}
    ]
    properties: Mapping[str, Any] = found
    return properties


@pytest.fixture(scope="module")
def agents_endpoint(limited: Endpoint) -> str:
    return limited.url


@pytest.fixture
def cloud(village: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """`bob` listens to `ann`; pauses take no time."""
    village.register("ann", "bob")
    village.subscribe("bob", "ann")
    monkeypatch.setattr(opened_agents()._fan, "_sleep", lambda _: None)
    monkeypatch.setattr(opened_agents(), "_sleep", lambda _: None)
    return village


def test_events_outlast_an_outage_of_dynamodb(cloud: Cloud, limited: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.publish("ann", 1, 2, 3)
    records = cloud.kinesis_event()["Records"]
    source = EventSource(aggregator.handler, _rendered("aggregator"))
    outage = Outage(calls=MORE_THAN_PATIENCE * 3)
    monkeypatch.setitem(limited.answers, "BatchWriteItem", outage)

    source.run(records)
    cloud.release()

    assert outage.calls < 0
    assert source.given_up == []
    assert cloud.drain("bob") == [1, 2, 3]


def test_rows_outlast_a_loss_of_the_rights_to_queues_and_tables(
    cloud: Cloud, limited: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.publish("ann", 1, 2, 3)
    cloud.aggregate()
    records = dynamodb_event(cloud.rows())["Records"]
    source = EventSource(publisher.handler, _rendered("publisher"))
    # Refused rights are answered at once, where the client would try again after an internal error.
    outage = Outage(calls=MORE_THAN_PATIENCE, code="AccessDeniedException", status=400)
    monkeypatch.setitem(limited.answers, "UpdateItem", outage)
    queues = Outage(calls=MORE_THAN_PATIENCE * 3, code="AccessDeniedException", status=400)
    monkeypatch.setitem(limited.answers, "SendMessageBatch", queues)

    source.run(records)

    assert queues.calls < 0
    assert source.given_up == []
    assert cloud.drain("bob") == [1, 2, 3]


def test_what_is_refused_for_good_keeps_no_trigger_busy(
    cloud: Cloud, limited: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.publish("ann", 1, 13, 2)
    records = cloud.kinesis_event()["Records"]
    source = EventSource(aggregator.handler, _rendered("aggregator"))

    def refuse(parameters: dict[str, Any]) -> Any:
        return error("ValidationException") if "'N': '13'" in str(parameters) else None

    monkeypatch.setitem(limited.answers, "BatchWriteItem", refuse)
    # The rights of the function: it may send to the queue, neither make it nor look at it.
    for operation in ("CreateQueue", "GetQueueAttributes"):
        monkeypatch.setitem(limited.answers, operation, lambda _: error("AccessDenied", 403))

    source.run(records)
    cloud.release()
    monkeypatch.undo()

    assert source.given_up == []
    assert cloud.drain("bob") == [1, 2]
    assert len(cloud.rejected("ann")) == 1


@dataclass
class Outage:
    """Answers so many calls with an error, and leaves all others to the emulator."""

    calls: int
    code: str = "InternalServerError"
    status: int = 500

    def __call__(self, parameters: dict[str, Any]) -> Any:
        self.calls -= 1
        return error(self.code, self.status) if self.calls >= 0 else None
