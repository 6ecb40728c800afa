"""Events from outside are believed only as far as they can be computed again."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.errors import EventTooLarge, InvalidEvent
from postroad.journal import JournalEvent
from postroad.journal.eventbridge import event_of_detail
from postroad.journal.keys import KEY_NAMES

SHA = "0" * 64


def detail(**given: Any) -> dict[str, Any]:
    """What a sender sends."""
    made = {
        "tenant_id": "acme",
        "entity_id": "req-1",
        "timestamp": 1_767_453_739_640,
        "properties": {"requestId": "req-1", "name": "scrape"},
        **given,
    }
    return JournalEvent.create(made.pop("event_type", "Task Pending"), **made).to_item()


def packed(**pointer: Any) -> dict[str, Any]:
    """A completed task whose output is in a blob."""
    sent = detail(
        event_type="Task Completed", properties={"requestId": "req-1", "output": 1, "durationMs": 1, "exitCode": 0}
    )
    del sent["properties"]["output"]
    key = f"events/req-1/{sent['SK'].rpartition('#')[2]}-payload.json"
    sent["properties"]["_s3Overflow"] = {"bucket": "b", "key": key, "sha256": SHA, "size": 5, **pointer}
    return sent


def test_what_a_sender_computed_is_the_event() -> None:
    sent = detail(app="shop", context={"source": "system", "origin": "producer"})

    assert event_of_detail(sent).to_item() == sent


def test_a_type_that_nobody_knows_is_taken() -> None:
    sent = detail(event_type="Store Opened", entity_type="STORE", properties={"any": 1})

    assert event_of_detail(sent).event_type == "Store Opened"


@pytest.mark.parametrize("name", KEY_NAMES)
def test_a_key_that_does_not_follow_from_the_fields_is_refused(name: str) -> None:
    sent = detail()
    sent[name] = sent[name].replace("acme", "other") if "acme" in sent[name] else f"{sent[name]}0"

    with pytest.raises(InvalidEvent):
        event_of_detail(sent)


@pytest.mark.parametrize("name", ["ttl", "receivedAt", "more", "GSI8PK"])
def test_an_attribute_that_is_not_the_senders_is_refused(name: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        event_of_detail({**detail(), name: 1})

    assert refused.value.field == name


@pytest.mark.parametrize("name", [*KEY_NAMES, "tenantId", "context", "properties", "eventType"])
def test_a_missing_attribute_is_refused(name: str) -> None:
    sent = detail()
    del sent[name]

    with pytest.raises(InvalidEvent) as refused:
        event_of_detail(sent)

    assert refused.value.field == name


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": 1_767_453_739},
        {"timestamp": 1_767_453_739_640.0},
        {"tenantId": "other"},
        {"tenantId": ["acme"]},
        {"eventType": "Task Failed"},
        {"eventType": None},
        {"entityId": "a b"},
        {"entityType": {}},
        {"context": []},
        {"properties": None},
        {"properties": {"name": "x"}},
        {"SK": 7},
        {"GSI2PK": None},
        {"SK": "TIMESTAMP#1767453739640#EVENT#DDF71F63-B036-4AC7-AD0F-77A7FDFCA352"},
    ],
)
def test_a_field_that_is_wrong_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent):
        event_of_detail({**detail(), **change})


@pytest.mark.parametrize("sent", [None, [], "text", 7])
def test_what_is_no_object_is_refused(sent: Any) -> None:
    with pytest.raises(InvalidEvent):
        event_of_detail(sent)


def test_properties_in_a_blob_are_taken_at_their_own_place() -> None:
    assert "_s3Overflow" in event_of_detail(packed()).properties


@pytest.mark.parametrize(
    "pointer",
    [
        {"key": "events/req-1/x-payload.json"},
        {"key": "events/../secret"},
        {"sha256": "x"},
        {"size": -1},
        {"size": "5"},
        {"more": 1},
        {"bucket": None},
    ],
)
def test_a_pointer_to_elsewhere_is_refused(pointer: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent) as refused:
        event_of_detail(packed(**pointer))

    assert refused.value.field == "properties._s3Overflow"


def test_what_is_left_beside_a_pointer_must_still_be_right() -> None:
    sent = packed()
    sent["properties"]["durationMs"] = "long"

    with pytest.raises(InvalidEvent) as refused:
        event_of_detail(sent)

    assert refused.value.field == "properties.durationMs"


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(EventTooLarge):
        event_of_detail(detail(properties={"requestId": "req-1", "name": "n" * 204_800}))
