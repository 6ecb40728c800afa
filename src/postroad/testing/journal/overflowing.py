"""Overflow: what is too large for an item comes back whole, or not at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroad.blobs import BlobRef
from postroad.errors import EventTooLarge, OverflowMismatch
from postroad.journal import JournalEvent, task_state
from postroad.testing.journal.fixture import GroundedTests, JournalFixture, add, completed, made, pending

LARGE = "x" * 210_000


def raw_properties(ground: JournalFixture, event: JournalEvent) -> dict[str, Any]:
    """What the item itself holds."""
    entity = (event.entity_type, event.entity_id)
    return ground.journal.query("GSI1", tenant="acme", entity=entity, raw=True).events[0].properties


def blob_of(ground: JournalFixture, event: JournalEvent) -> BlobRef:
    """The blob that the item points to."""
    pointer = raw_properties(ground, event)["_s3Overflow"]
    return BlobRef(key=pointer["key"], size=pointer["size"], sha256=pointer["sha256"])


class Overflowing(GroundedTests):
    """What happens above 204,800 bytes."""

    def test_a_large_event_comes_back_whole(self, ground: JournalFixture) -> None:
        event = completed("Req-1", output={"text": LARGE, "é": [1, None]})

        add(ground.journal, [event])

        read = ground.journal.latest("acme", "TASK", "Req-1")
        assert read is not None
        assert read.properties == event.properties

    def test_the_item_points_to_a_blob_of_its_own(self, ground: JournalFixture) -> None:
        event = completed("Req-1", output=LARGE)

        add(ground.journal, [event])

        item = raw_properties(ground, event)
        pointer = item.pop("_s3Overflow")
        assert item == {"requestId": "Req-1", "durationMs": 1, "exitCode": 0}
        assert pointer["key"] == f"events/Req-1/{event.event_id}-payload.json"
        assert pointer["bucket"] == ground.blobs.bucket
        assert msgspec.json.decode(ground.blobs.get(blob_of(ground, event))) == {"output": LARGE}

    def test_only_what_must_leave_the_item_leaves_it(self, ground: JournalFixture) -> None:
        parts = {"output": "o" * 90_000, "input": "i" * 90_000, "tasks": "t" * 90_000, "other": "n" * 50_000}
        event = made("Store Opened", "s-1", entity_type="STORE", properties=parts)

        add(ground.journal, [event])

        assert sorted(raw_properties(ground, event)) == ["_s3Overflow", "other", "tasks"]

    def test_behind_the_known_ones_the_largest_leave_first(self, ground: JournalFixture) -> None:
        parts = {"small": "s" * 10_000, "large": "l" * 150_000, "middle": "m" * 100_000, "dependencyOutputs": {}}
        event = made("Store Opened", "s-1", entity_type="STORE", properties=parts)

        add(ground.journal, [event])

        assert sorted(raw_properties(ground, event)) == ["_s3Overflow", "middle", "small"]

    def test_an_event_that_just_fits_needs_no_blob(self, ground: JournalFixture) -> None:
        frame = len(msgspec.json.encode(made("A", "s-1", entity_type="S", properties={"a": ""}).to_item()))
        fits, over = (
            made("A", name, entity_type="S", properties={"a": "x" * (204_800 - frame + extra)})
            for name, extra in (("s-1", 0), ("s-2", 1))
        )

        add(ground.journal, [fits, over])

        assert len(msgspec.json.encode(fits.to_item())) == 204_800
        assert "_s3Overflow" not in raw_properties(ground, fits)
        assert list(raw_properties(ground, over)) == ["_s3Overflow"]

    @pytest.mark.parametrize("damage", ["missing", "altered", "shorter"])
    def test_a_blob_that_is_not_what_was_stored_is_noticed_and_hides_nothing_else(
        self, ground: JournalFixture, damage: str
    ) -> None:
        event, other = completed("req-1", output=LARGE), pending("req-2", 1)
        add(ground.journal, [event, other])
        ref = blob_of(ground, event)
        if damage == "missing":
            ground.blobs.delete(ref)
        else:
            data = ground.blobs.get(ref)
            ground.blobs.put(ref.key, data.replace(b"x", b"y") if damage == "altered" else data[:-1])

        with pytest.raises(OverflowMismatch) as noticed:
            ground.journal.latest("acme", "TASK", "req-1")

        assert noticed.value.event_id == event.event_id
        assert len(ground.journal.query("PK", tenant="acme", raw=True).events) == 2
        assert ground.journal.latest("acme", "TASK", "req-2") is not None
        found = {each.event_id: each for each in ground.journal.query("PK", tenant="acme").events}
        assert found[other.event_id].overflow_error is None
        assert found[other.event_id].properties == other.properties
        assert str(event.event_id) in (found[event.event_id].overflow_error or "")
        assert "_s3Overflow" in found[event.event_id].properties
        with pytest.raises(OverflowMismatch):
            task_state(ground.journal, "acme", "req-1")
        state = task_state(ground.journal, "acme", "req-1", raw=True)
        assert state is not None
        assert state.state == "completed"

    def test_a_blob_of_the_input_that_is_altered_hides_no_output(self, ground: JournalFixture) -> None:
        event = pending("req-1", 1, properties={"input": {"large": LARGE}})
        add(ground.journal, [event, completed("req-1", 2, output="done")])
        ref = blob_of(ground, event)
        ground.blobs.put(ref.key, b"altered")

        state = task_state(ground.journal, "acme", "req-1")

        assert state is not None
        assert (state.state, state.output) == ("completed", "done")

    def test_appending_again_leaves_the_blob_as_it_was(self, ground: JournalFixture) -> None:
        event = completed("req-1", output=LARGE)
        other = msgspec.structs.replace(event, properties={**event.properties, "output": "y" * 210_000})
        add(ground.journal, [event])

        again = ground.journal.append([other])

        assert again[0].duplicate
        read = ground.journal.latest("acme", "TASK", "req-1")
        assert read is not None
        assert read.properties["output"] == LARGE

    def test_what_cannot_fit_is_refused_alone_and_nothing_of_it_is_stored(self, ground: JournalFixture) -> None:
        event = pending("req-1", context={"source": LARGE})

        results = ground.journal.append([event, pending("req-2")])

        assert [result.ok for result in results] == [False, True]
        assert isinstance(results[0].error, EventTooLarge)
        assert ground.journal.latest("acme", "TASK", "req-1") is None
