"""The conformance suite of journals: a new adapter is a subclass with the fixture `ground`."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from postroad.blobs import BlobRef
from postroad.errors import EventTooLarge, InvalidEvent, InvalidInput, OverflowMismatch
from postroad.journal import AppendResult, Journal, JournalEvent, task_history, task_state, tasks_by_state
from postroad.testing.conformance import accepted
from postroad.testing.journal_queries import (
    T0,
    JournalFixture,
    JournalRules,
    PageRules,
    QueryRules,
    add,
    cancelled,
    completed,
    failed,
    heartbeat,
    ids,
    latest,
    made,
    pending,
    started,
    state_of,
    timed_out,
    whole,
)

__all__ = ["JournalConformance", "JournalFixture"]

DEEP: dict[str, Any] = {"name": "bottom"}
for _ in range(60):
    DEEP = {"in": DEEP}
VALUES = [
    *({}, [], "", 0, -1, 2**63, -(2**63), 2**64 + 1, -(10**60), 1.5, 1e300, 1e-300, 0.1, True, False, None),
    *(1.0, -0.0, 1e22, -7.0, [1, 1.0, 2.5], {"a": [{"b": 3.0}]}),
    *("é漢😀\x00", [[], {}, [None]], {"": 1}, {"a b.c": [1, {"d": None}]}, DEEP),
]


class AppendRules(JournalRules):
    """Appending: durable, once, each event by itself."""

    def test_making_the_storage_again_and_appending_nothing_change_nothing(self, journal: Journal) -> None:
        event = pending("req-1")
        add(journal, [event])

        journal.init()

        assert journal.append([]) == []
        assert whole(journal, "PK") == [event.event_id]

    def test_an_event_comes_back_as_it_was_made(self, journal: Journal) -> None:
        event = pending("req-1", app="shop", context={"source": "system", "workerId": "w-1"}, properties={"extra": [1]})

        add(journal, [event])

        read = latest(journal, "req-1")
        assert read.received_at is not None
        assert replace(read, received_at=None) == event
        assert {**event.to_item(), "receivedAt": read.received_at} == read.to_item()

    def test_every_value_of_json_comes_back(self, journal: Journal) -> None:
        events = [
            made("Store Opened", "s-1", n, entity_type="STORE", properties={"value": value}, context={"value": value})
            for n, value in enumerate(VALUES)
        ]

        add(journal, events)

        found = journal.query("PK", tenant="acme").events
        # As text, since 1 and 1.0 are equal and yet not the same.
        assert [_all_text(event) for event in found] == [_all_text(event) for event in events]

    def test_any_json_text_that_is_accepted_comes_back_unchanged(self, journal: Journal) -> None:
        def append(text: str) -> None:
            properties = {"value": _value(text)}
            [result] = journal.append([made("Store Opened", "s-1", entity_type="STORE", properties=properties)])
            if result.error is not None:
                raise InvalidInput(str(result.error))

        sent = accepted(append)

        found = journal.query("PK", tenant="acme").events
        assert sorted(_text(event.properties["value"]) for event in found) == sorted(map(_text, map(_value, sent)))

    def test_a_type_that_nobody_knows_is_stored_and_read(self, journal: Journal) -> None:
        event = made("Parcel Lost: twice", "p-1", entity_type="PARCEL_2", properties={"any": "thing"})

        add(journal, [event])

        assert whole(journal, "GSI5", event_type="Parcel Lost: twice", entity=("PARCEL_2", "p-1")) == [event.event_id]

    def test_an_event_is_stored_once_and_stays_as_it_was(self, journal: Journal) -> None:
        event = pending("req-1")
        other = replace(event, properties={"requestId": "req-1", "name": "other"})

        once = journal.append([event, event])
        first = journal.latest("acme", "TASK", "req-1")
        again = journal.append([event, other])

        assert [result.duplicate for result in once] == [False, True]
        assert again == [AppendResult(event_id=event.event_id, ok=True, duplicate=True)] * 2
        assert journal.latest("acme", "TASK", "req-1") == first
        assert whole(journal, "PK") == [event.event_id]

    def test_the_same_id_at_another_time_or_of_another_tenant_is_another_event(self, journal: Journal) -> None:
        event = pending("req-1")
        later = pending("req-1", 1, event_id=event.event_id)
        foreign = pending("req-1", tenant="other", event_id=event.event_id)

        results = journal.append([event, later, foreign])

        assert [result.duplicate for result in results] == [False] * 3
        assert len(whole(journal, "PK")) == 2

    def test_one_bad_event_fails_alone(self, journal: Journal) -> None:
        good = [pending("req-1"), pending("req-2"), pending("req-3")]
        mistakes = {"timestamp": T0 // 1000, "tenant_id": "", "properties": {"name": "x"}, "entity_id": "a#b"}
        bad = [replace(good[0], event_id=UUID(int=n), **{f: v}) for n, (f, v) in enumerate(mistakes.items(), 1)]

        results = journal.append([good[0], *bad[:2], good[1], *bad[2:], good[2]])

        assert [result.ok for result in results] == [True, False, False, True, False, False, True]
        assert [result.event_id for result in results][1] == UUID(int=1)
        assert all(isinstance(result.error, InvalidEvent) for result in results if not result.ok)
        fields = [getattr(result.error, "field", None) for result in results if not result.ok]
        assert fields == ["timestamp", "tenant_id", "properties.requestId", "entity_id"]
        assert whole(journal, "PK") == ids(good)

    def test_many_threads_append_each_event_once(self, journal: Journal) -> None:
        events = [heartbeat(f"req-{n % 3}", n % 7) for n in range(40)]

        def append_all(seed: int) -> int:
            mine = random.Random(seed).sample(events, len(events))
            return sum(not result.duplicate for batch in (mine[:15], mine[15:]) for result in journal.append(batch))

        with ThreadPoolExecutor(4) as threads:
            stored = sum(threads.map(append_all, range(4)))

        assert stored == len(events)
        assert sorted(whole(journal, "PK")) == sorted(ids(events))

    def test_the_latest_event_is_that_of_the_last_millisecond_and_the_greatest_id(self, journal: Journal) -> None:
        events = [heartbeat("req-1", ms) for ms in (3, 5, 5, 5, 1)]
        add(journal, events)

        assert latest(journal, "req-1").event_id == max(event.event_id for event in events if event.timestamp == T0 + 5)
        assert journal.latest("acme", "TASK", "req-2") is None
        assert journal.latest("other", "TASK", "req-1") is None


def _value(text: str) -> Any:
    return json.loads(text.removeprefix("\ufeff"), strict=False)


def _text(value: Any) -> str:
    """Return the value as text, in which 1 and 1.0 differ."""
    return json.dumps(value, sort_keys=True)


def _all_text(event: JournalEvent) -> str:
    return _text([event.properties, event.context])


LARGE = "x" * 210_000


def raw_properties(ground: JournalFixture, event: JournalEvent) -> dict[str, Any]:
    """Return the properties that the item itself holds."""
    entity = (event.entity_type, event.entity_id)
    return ground.journal.query("GSI1", tenant="acme", entity=entity, raw=True).events[0].properties


def blob_of(ground: JournalFixture, event: JournalEvent) -> BlobRef:
    pointer = raw_properties(ground, event)["_s3Overflow"]
    return BlobRef(key=pointer["key"], size=pointer["size"], sha256=pointer["sha256"])


class OverflowRules(JournalRules):
    """Events above 204,800 bytes: they come back whole, or not at all."""

    def test_a_large_event_comes_back_whole(self, ground: JournalFixture) -> None:
        event = completed("Req-1", output={"text": LARGE, "é": [1, None]})

        add(ground.journal, [event])

        assert latest(ground.journal, "Req-1").properties == event.properties

    def test_the_item_points_to_a_blob_of_its_own(self, ground: JournalFixture) -> None:
        event = completed("Req-1", output=LARGE)

        add(ground.journal, [event])

        item = raw_properties(ground, event)
        pointer = item.pop("_s3Overflow")
        assert item == {"requestId": "Req-1", "durationMs": 1, "exitCode": 0}
        assert pointer["key"] == f"events/Req-1/{event.event_id}-payload.json"
        assert pointer["bucket"] == ground.blobs.bucket
        assert msgspec.json.decode(ground.blobs.get(blob_of(ground, event))) == {"output": LARGE}

    @pytest.mark.parametrize(
        ("sizes", "stay"),
        [
            ({"output": 90_000, "input": 90_000, "tasks": 90_000, "other": 50_000}, ["other", "tasks"]),
            ({"small": 10_000, "large": 150_000, "middle": 100_000, "dependencyOutputs": 2}, ["middle", "small"]),
        ],
    )
    def test_only_what_must_leave_the_item_leaves_it_the_largest_behind_the_known_ones(
        self, ground: JournalFixture, sizes: dict[str, int], stay: list[str]
    ) -> None:
        parts = {name: "x" * size for name, size in sizes.items()}
        event = made("Store Opened", "s-1", entity_type="STORE", properties=parts)

        add(ground.journal, [event])

        assert sorted(raw_properties(ground, event)) == ["_s3Overflow", *stay]

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
        assert latest(ground.journal, "req-2") is not None
        found = {each.event_id: each for each in ground.journal.query("PK", tenant="acme").events}
        assert found[other.event_id].overflow_error is None
        assert found[other.event_id].properties == other.properties
        assert str(event.event_id) in (found[event.event_id].overflow_error or "")
        assert "_s3Overflow" in found[event.event_id].properties
        with pytest.raises(OverflowMismatch):
            task_state(ground.journal, "acme", "req-1")
        assert state_of(ground.journal, "req-1", raw=True).state == "completed"

    def test_a_blob_of_the_input_that_is_altered_hides_no_output(self, ground: JournalFixture) -> None:
        event = pending("req-1", 1, properties={"input": {"large": LARGE}})
        add(ground.journal, [event, completed("req-1", 2, output="done")])
        ground.blobs.put(blob_of(ground, event).key, b"altered")

        state = state_of(ground.journal, "req-1")

        assert (state.state, state.output) == ("completed", "done")

    def test_appending_again_leaves_the_blob_as_it_was(self, ground: JournalFixture) -> None:
        event = completed("req-1", output=LARGE)
        other = replace(event, properties={**event.properties, "output": "y" * 210_000})
        add(ground.journal, [event])

        again = ground.journal.append([other])

        assert again[0].duplicate
        assert latest(ground.journal, "req-1").properties["output"] == LARGE

    def test_what_cannot_fit_is_refused_alone_and_nothing_of_it_is_stored(self, ground: JournalFixture) -> None:
        event = pending("req-1", context={"source": LARGE})

        results = ground.journal.append([event, pending("req-2")])

        assert [result.ok for result in results] == [False, True]
        assert isinstance(results[0].error, EventTooLarge)
        assert ground.journal.latest("acme", "TASK", "req-1") is None


def one_of_each(**given: Any) -> list[JournalEvent]:
    """Return events of tasks in every state, out of order."""
    return [
        *(completed("done", 30, **given), heartbeat("done", 40, **given), pending("done", 10, **given)),
        *(started("runs", 20, **given), pending("runs", 10, **given)),
        *(pending("waits", 10, **given),),
        *(failed("fails", 30, **given), started("fails", 20, **given)),
        *(timed_out("late", 30, **given), started("late", 20, **given)),
        *(cancelled("given-up", 30, **given), pending("given-up", 10, **given)),
        *(failed("again", 20, **given), pending("again", 10, **given), pending("again", 30, **given)),
    ]


EXPECTED = {"pending": ["again", "waits"], "processing": ["runs"], "completed": ["done"]}
EXPECTED |= {"failed": ["fails", "late"], "cancelled": ["given-up"]}


class StateRules(JournalRules):
    """The states of tasks, folded from their events."""

    def test_the_history_of_a_task_is_all_of_its_events_in_order(self, journal: Journal) -> None:
        events = [pending("req-1", 1), started("req-1", 2), heartbeat("req-1", 2), completed("req-1", 4)]
        add(journal, [*events[::-1], pending("req-10"), pending("req-1", tenant="other")])

        assert ids(task_history(journal, "acme", "req-1")) == ids(events)
        assert task_history(journal, "acme", "nobody") == []

    def test_the_state_of_a_task_is_that_of_the_moment(self, journal: Journal) -> None:
        add(journal, [pending("req-1", 10), started("req-1", 20), completed("req-1", 30, output={"n": 1})])

        states = [task_state(journal, "acme", "req-1", at) for at in (None, T0 + 9, T0 + 10, T0 + 29, T0 + 30)]

        assert [state and state.state for state in states] == ["completed", None, "pending", "processing", "completed"]
        assert state_of(journal, "req-1").output == {"n": 1}
        assert task_state(journal, "acme", "nobody") is None

    def test_every_task_is_listed_once_under_its_state(self, journal: Journal) -> None:
        store = made("Store Opened", "s-1", entity_type="STORE", properties={})
        unknown = made("Task Admired", "unknown", properties={})
        add(journal, [*one_of_each(), store, unknown, pending("elsewhere", tenant="other")])

        assert tasks_by_state(journal, "acme") == EXPECTED
        assert tasks_by_state(journal, "nobody") == {state: [] for state in EXPECTED}

    def test_the_tasks_of_an_app_are_those_it_has_an_event_of(self, journal: Journal) -> None:
        add(journal, [*one_of_each(app="shop"), pending("else", app="other"), started("else", 5, app="third")])

        assert tasks_by_state(journal, "acme", app="shop") == EXPECTED
        assert tasks_by_state(journal, "acme", app="other")["processing"] == ["else"]

    def test_since_a_time_only_tasks_with_an_event_then_are_listed(self, journal: Journal) -> None:
        add(journal, one_of_each())

        found = tasks_by_state(journal, "acme", since=T0 + 30)

        assert found == {**EXPECTED, "pending": ["again"], "processing": []}
        assert tasks_by_state(journal, "acme", since=T0 + 41) == {state: [] for state in EXPECTED}

    def test_a_duplicate_or_late_event_changes_the_lists_as_it_changes_the_fold(self, journal: Journal) -> None:
        events = [pending("req-1", 10), completed("req-1", 30), started("req-1", 20), heartbeat("req-1", 50)]
        for event in (*events, *events):
            journal.append([event])

        add(journal, [failed("req-1", 25)])

        state = state_of(journal, "req-1")
        assert (state.state, state.stale) == ("failed", [events[1].event_id])
        assert tasks_by_state(journal, "acme")["failed"] == ["req-1"]


class JournalConformance(AppendRules, QueryRules, PageRules, OverflowRules, StateRules):
    """Every promise of `Journal`."""
