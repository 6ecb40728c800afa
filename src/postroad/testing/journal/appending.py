"""Appending: durable, once, each event by itself."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import msgspec

from postroad.errors import InvalidEvent, InvalidInput
from postroad.journal import AppendResult, Journal, JournalEvent
from postroad.testing.journal.fixture import T0, GroundedTests, add, heartbeat, ids, made, pending, whole
from postroad.testing.json_texts import accepted

DEEP: dict[str, Any] = {"name": "bottom"}
for _ in range(60):
    DEEP = {"in": DEEP}
VALUES = [
    *({}, [], "", 0, -1, 2**63, -(2**63), 2**64 + 1, -(10**60), 1.5, 1e300, 1e-300, 0.1, True, False, None),
    *(1.0, -0.0, 1e22, -7.0, [1, 1.0, 2.5], {"a": [{"b": 3.0}]}),
    *("é漢😀\x00", [[], {}, [None]], {"": 1}, {"a b.c": [1, {"d": None}]}, DEEP),
]


class Appending(GroundedTests):
    """What `append` promises."""

    def test_making_the_storage_again_changes_nothing(self, journal: Journal) -> None:
        event = pending("req-1")
        add(journal, [event])

        journal.init()

        assert whole(journal, "PK") == [event.event_id]

    def test_an_event_comes_back_as_it_was_made(self, journal: Journal) -> None:
        event = pending("req-1", app="shop", context={"source": "system", "workerId": "w-1"}, properties={"extra": [1]})

        add(journal, [event])

        read = journal.latest("acme", "TASK", "req-1")
        assert read is not None
        assert read.received_at is not None
        assert msgspec.structs.replace(read, received_at=None) == event
        assert {**event.to_item(), "receivedAt": read.received_at} == read.to_item()

    def test_every_value_of_json_comes_back(self, journal: Journal) -> None:
        events = [
            made("Store Opened", "s-1", n, entity_type="STORE", properties={"value": value}, context={"value": value})
            for n, value in enumerate(VALUES)
        ]

        add(journal, events)

        found = journal.query("PK", tenant="acme").events
        # As text, since 1 and 1.0 are equal and yet not the same.
        assert [_told(event) for event in found] == [_told(event) for event in events]

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

    def test_appending_nothing_is_nothing(self, journal: Journal) -> None:
        assert journal.append([]) == []

    def test_an_event_is_stored_once_and_stays_as_it_was(self, journal: Journal) -> None:
        event = pending("req-1")
        other = msgspec.structs.replace(event, properties={"requestId": "req-1", "name": "other"})
        add(journal, [event])
        first = journal.latest("acme", "TASK", "req-1")

        again = journal.append([event, other])

        assert again == [AppendResult(event_id=event.event_id, ok=True, duplicate=True)] * 2
        assert journal.latest("acme", "TASK", "req-1") == first
        assert whole(journal, "PK") == [event.event_id]

    def test_an_event_twice_in_one_batch_is_stored_once(self, journal: Journal) -> None:
        event = pending("req-1")

        results = journal.append([event, event])

        assert [result.duplicate for result in results] == [False, True]
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
        bad = [
            msgspec.structs.replace(good[0], timestamp=1_767_453_739, event_id=UUID(int=1)),
            msgspec.structs.replace(good[0], tenant_id="", event_id=UUID(int=2)),
            msgspec.structs.replace(good[0], properties={"name": "x"}, event_id=UUID(int=3)),
            msgspec.structs.replace(good[0], entity_id="a#b", event_id=UUID(int=4)),
        ]

        results = journal.append([good[0], *bad[:2], good[1], *bad[2:], good[2]])

        assert [result.ok for result in results] == [True, False, False, True, False, False, True]
        assert [result.event_id for result in results][1] == UUID(int=1)
        assert all(isinstance(result.error, InvalidEvent) for result in results if not result.ok)
        assert [result.error.field for result in results if result.error] == [
            "timestamp",
            "tenant_id",
            "properties.requestId",
            "entity_id",
        ]
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

        latest = journal.latest("acme", "TASK", "req-1")

        assert latest is not None
        assert latest.event_id == max(event.event_id for event in events if event.timestamp == T0 + 5)
        assert journal.latest("acme", "TASK", "req-2") is None
        assert journal.latest("other", "TASK", "req-1") is None


def _value(text: str) -> Any:
    return json.loads(text.removeprefix("\ufeff"), strict=False)


def _text(value: Any) -> str:
    """The value as text that tells 1 from 1.0."""
    return json.dumps(value, sort_keys=True)


def _told(event: JournalEvent) -> str:
    return _text([event.properties, event.context])
