"""Events on their way through EventBridge: ten a call, and only what failed is sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.memory import memory_blobs

from postroad.blobs import BlobRef
from postroad.errors import ConfigurationError, EventTooLarge, OutcomeUnknown, Unavailable
from postroad.journal import EventBridgeSender, JournalEvent
from postroad.journal.eventbridge import event_of_detail

T0 = 1_767_453_739_640
Answer = Callable[[list[dict[str, Any]]], list[str | None]]


class Bus:
    """A client with given answers: for each entry an error code or None."""

    def __init__(self, *answers: Answer) -> None:
        self.calls: list[list[dict[str, Any]]] = []
        self._answers = list(answers)

    def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(Entries)
        codes = self._answers.pop(0)(Entries) if self._answers else [None] * len(Entries)
        entries = [{"EventId": "e"} if code is None else {"ErrorCode": code, "ErrorMessage": "why"} for code in codes]
        return {"FailedEntryCount": sum(code is not None for code in codes), "Entries": entries}

    def sent(self) -> list[list[str]]:
        """The tasks of each call."""
        return [[json.loads(entry["Detail"])["entityId"] for entry in call] for call in self.calls]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.connections.aws_calls.pause", lambda failures: None)


def pending(task: str, **given: Any) -> JournalEvent:
    properties = {"requestId": task, "name": "scrape", **given}
    return JournalEvent.create("Task Pending", tenant_id="acme", entity_id=task, timestamp=T0, properties=properties)


def all_but(*failing: int) -> Answer:
    return lambda entries: ["InternalFailure" if n in failing else None for n in range(len(entries))]


def test_an_entry_is_the_item_under_its_apps_source() -> None:
    bus, event = Bus(), pending("req-1")

    results = EventBridgeSender(bus, event_bus_name="events-dev").append([event])

    assert [(result.event_id, result.ok, result.duplicate) for result in results] == [(event.event_id, True, False)]
    (entry,) = bus.calls[0]
    assert json.loads(entry.pop("Detail")) == event.to_item()
    assert entry == {
        "Source": "task-workflow.postroad",
        "DetailType": "log-event",
        "Time": datetime(2026, 1, 3, 15, 22, 19, 640_000, tzinfo=UTC),
        "EventBusName": "events-dev",
    }


def test_the_source_may_be_named() -> None:
    bus = Bus()

    EventBridgeSender(bus, event_bus_name="b", app="shop").append([pending("req-1")])

    assert bus.calls[0][0]["Source"] == "task-workflow.shop"


def test_ten_entries_go_in_one_call() -> None:
    bus = Bus()

    results = EventBridgeSender(bus, event_bus_name="b").append([pending(f"t{n}") for n in range(23)])

    assert [len(call) for call in bus.calls] == [10, 10, 3]
    assert all(result.ok for result in results)


def test_entries_that_are_large_together_go_in_several_calls() -> None:
    bus = Bus()

    EventBridgeSender(bus, event_bus_name="b").append([pending(f"t{n}", text="x" * 100_000) for n in range(4)])

    assert [len(call) for call in bus.calls] == [2, 2]


def test_only_failed_entries_are_sent_again() -> None:
    bus = Bus(all_but(1, 3), all_but(1))

    results = EventBridgeSender(bus, event_bus_name="b").append([pending(f"t{n}") for n in range(5)])

    assert bus.sent() == [["t0", "t1", "t2", "t3", "t4"], ["t1", "t3"], ["t3"]]
    assert all(result.ok for result in results)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_an_entry_that_keeps_failing_is_reported(retries: int) -> None:
    bus = Bus(*[all_but(1), *[all_but(0)] * 9])

    results = EventBridgeSender(bus, event_bus_name="b", retries=retries).append([pending("a"), pending("b")])

    assert bus.sent() == [["a", "b"], *[["b"]] * retries]
    assert [result.ok for result in results] == [True, False]
    assert isinstance(results[1].error, Unavailable)


def test_a_call_that_fails_is_reported_for_its_entries() -> None:
    class Broken:
        def put_events(self, Entries: list[Any]) -> Any:
            raise ConnectionResetError("gone")

    results = EventBridgeSender(Broken(), event_bus_name="b").append([pending(f"t{n}") for n in range(12)])

    assert [result.ok for result in results] == [False] * 12
    assert isinstance(results[0].error, OutcomeUnknown)
    assert isinstance(results[11].error, Unavailable)


def test_what_is_large_travels_as_a_blob_that_the_receiver_accepts() -> None:
    bus, blobs = Bus(), memory_blobs()

    EventBridgeSender(bus, event_bus_name="b", blobs=blobs).append([pending("req-1", input={"text": "x" * 210_000})])

    received = event_of_detail(json.loads(bus.calls[0][0]["Detail"]))
    pointer = received.properties["_s3Overflow"]
    ref = BlobRef(key=pointer["key"], size=pointer["size"], sha256=pointer["sha256"])
    assert json.loads(blobs.get(ref)) == {"input": {"text": "x" * 210_000}}


def test_what_is_large_fails_alone_without_blobs() -> None:
    bus = Bus()

    results = EventBridgeSender(bus, event_bus_name="b").append(
        [pending("large", input={"text": "x" * 210_000}), pending("small")]
    )

    assert isinstance(results[0].error, EventTooLarge)
    assert results[1].ok
    assert bus.sent() == [["small"]]


@pytest.mark.parametrize("retries", [-1, 1.5, True])
def test_retries_that_cannot_be_are_refused(retries: Any) -> None:
    with pytest.raises(ConfigurationError, match="retries"):
        EventBridgeSender(Bus(), event_bus_name="b", retries=retries)
