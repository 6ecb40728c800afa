"""Overflow: a pointer is believed only when the reader would have built it itself."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from tests.memory import memory_blobs, memory_records

from postroad.errors import EventTooLarge, InvalidEvent, OverflowMismatch
from postroad.journal import JournalEvent
from postroad.journal.overflow import Overflow, blob_key
from postroad.journal.port import Entry
from postroad.journal.store import StoredJournal
from postroad.testing.journal_queries import completed

LARGE = {"text": "x" * 210_000}


class Fixture:
    """A journal in memory, its rows and its blobs."""

    def __init__(self) -> None:
        self.records, self.blobs = memory_records(), memory_blobs()
        self.overflow = Overflow(self.blobs)
        self.journal = StoredJournal(self.records, self.overflow)

    def forge(self, event: JournalEvent, **pointer: Any) -> None:
        """Store an item whose pointer is not what an append would have written."""
        entry = self.overflow.pack(Entry.of(event))
        self.overflow.store(entry)
        forged = {**entry.event.properties["_s3Overflow"], **pointer}
        properties = {**entry.event.properties, "_s3Overflow": forged}
        self.records.add([Entry.of(msgspec.structs.replace(entry.event, properties=properties))], 1, None)


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


LEAVING = (
    "output",
    "outputs",
    "input",
    "claudeOutput",
    "tasks",
    "newTasks",
    "taskStatuses",
    "dependencyOutputs",
    "anything",
)


@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise(LEAVING)))
def test_what_is_known_to_grow_leaves_in_its_order(fixture: Fixture, first: str, second: str) -> None:
    event = JournalEvent.create(
        "Store Counted",
        tenant_id="acme",
        entity_type="STORE",
        entity_id="s",
        properties={second: "x" * 150_000, first: "x" * 100_000},
    )

    packed = fixture.overflow.pack(Entry.of(event)).event.properties

    assert packed.keys() == {second, "_s3Overflow"}


@pytest.mark.parametrize(
    "pointer",
    [
        {"key": "events/req-2/0-payload.json"},
        {"key": "overflow/20300101/secret"},
        {"bucket": "other"},
        {"size": 1},
        {"sha256": "0" * 64},
        {"sha256": "x"},
        {"size": -1},
        {"size": "7"},
        {"more": 1},
        {"key": None},
    ],
)
def test_a_pointer_that_differs_is_refused(fixture: Fixture, pointer: dict[str, Any]) -> None:
    event = completed("req-1", output=LARGE)
    fixture.forge(event, **pointer)

    with pytest.raises(OverflowMismatch) as refused:
        fixture.journal.latest("acme", "TASK", "req-1")

    assert refused.value.event_id == event.event_id
    assert len(fixture.journal.query("GSI1", tenant="acme", entity=("TASK", "req-1"), raw=True).events) == 1


def test_a_blob_of_its_size_and_hash_that_holds_no_object_is_refused(fixture: Fixture) -> None:
    event = completed("req-1", output=LARGE)
    ref = fixture.blobs.put(blob_key("req-1", event.event_id), b"[1]")
    fixture.forge(event, sha256=ref.sha256, size=ref.size)
    fixture.blobs.put(ref.key, b"[1]")

    with pytest.raises(OverflowMismatch):
        fixture.journal.latest("acme", "TASK", "req-1")


def test_without_blobs_what_lies_there_cannot_be_read(fixture: Fixture) -> None:
    fixture.journal.append([completed("req-1", output=LARGE)])
    blind = StoredJournal(fixture.records, Overflow(None))

    with pytest.raises(OverflowMismatch, match="no blobs"):
        blind.latest("acme", "TASK", "req-1")


def test_a_writer_that_died_between_blob_and_item_is_repeated_whole(fixture: Fixture) -> None:
    event = completed("req-1", output=LARGE)
    fixture.overflow.store(fixture.overflow.pack(Entry.of(event)))
    assert fixture.journal.latest("acme", "TASK", "req-1") is None

    results = fixture.journal.append([event])

    assert (results[0].ok, results[0].duplicate) == (True, False)
    read = fixture.journal.latest("acme", "TASK", "req-1")
    assert read is not None
    assert read.properties == event.properties


def test_a_callers_own_pointer_is_refused(fixture: Fixture) -> None:
    event = completed("req-1")
    forged = msgspec.structs.replace(event, properties={**event.properties, "_s3Overflow": {"key": "x"}})

    (result,) = fixture.journal.append([forged])

    assert isinstance(result.error, InvalidEvent)
    assert result.error.field == "properties._s3Overflow"


def test_an_entity_whose_name_no_blob_can_have_keeps_its_events_small(fixture: Fixture) -> None:
    small, large = completed(".hidden"), completed(".hidden", 1, output=LARGE)

    results = fixture.journal.append([small, large])

    assert results[0].ok
    assert isinstance(results[1].error, EventTooLarge)
    assert "cannot be put into a blob" in str(results[1].error)
