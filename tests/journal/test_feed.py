"""Following a journal by the times of its events, where the store has no order of arrival."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from postroad.journal import JournalEvent
from postroad.journal.store import follow_by_time

NOW = 1_700_000_000_000
MINUTE = 60_000
TYPES = ("Task Completed", "Task Failed")


class Shelf:
    """Events as a store without an order of arrival gives them back."""

    def __init__(self) -> None:
        self._events: list[JournalEvent] = []

    def store(self, name: str, *, happened: int, received: int, event_type: str = TYPES[0]) -> None:
        properties = {"requestId": name, "output": None, "durationMs": 1, "exitCode": 0}
        if event_type == "Task Failed":
            properties = {
                "requestId": name,
                "error": "x",
                "errorCategory": "unknown",
                "retryCount": 1,
                "source": "worker",
            }
        event = JournalEvent.create(
            event_type, tenant_id="acme", entity_id=name, properties=properties, timestamp=happened
        )
        self._events.append(msgspec.structs.replace(event, received_at=received))

    def read(self, event_type: str, start: int, end: int) -> Iterable[JournalEvent]:
        found = [each for each in self._events if each.event_type == event_type and start <= each.timestamp <= end]
        return sorted(found, key=lambda each: each.timestamp)


def names(events: Iterable[JournalEvent]) -> list[str]:
    return [event.entity_id for event in events]


def test_it_begins_at_the_present_end() -> None:
    shelf = Shelf()
    shelf.store("old", happened=NOW - 5 * MINUTE, received=NOW - 5 * MINUTE)

    begun = follow_by_time(shelf.read, TYPES, None, now=NOW)
    shelf.store("new", happened=NOW + 10, received=NOW + 20)
    followed = follow_by_time(shelf.read, TYPES, begun.position, now=NOW + 1_000)

    assert begun.events == []
    assert (names(followed.events), followed.has_more) == (["new"], False)


def test_events_of_several_types_come_in_the_order_of_their_times() -> None:
    shelf = Shelf()
    begun = follow_by_time(shelf.read, TYPES, None, now=NOW)
    for number, event_type in enumerate(("Task Failed", "Task Completed", "Task Failed")):
        shelf.store(f"t{number}", happened=NOW + number, received=NOW + number, event_type=event_type)

    assert names(follow_by_time(shelf.read, TYPES, begun.position, now=NOW + 1_000).events) == ["t0", "t1", "t2"]


def test_an_event_that_arrives_an_hour_late_is_found_within_ten_minutes() -> None:
    shelf = Shelf()
    position = follow_by_time(shelf.read, TYPES, None, now=NOW).position
    shelf.store("late", happened=NOW - 60 * MINUTE, received=NOW + 1)
    seen = list[str]()

    for minute in range(1, 12):
        followed = follow_by_time(shelf.read, TYPES, position, now=NOW + minute * MINUTE)
        position = followed.position
        seen += names(followed.events)

    assert seen == ["late"]


def test_a_long_backlog_is_read_in_steps_and_completely() -> None:
    shelf = Shelf()
    position = follow_by_time(shelf.read, TYPES, None, now=NOW).position
    for hour in range(5):
        shelf.store(f"h{hour}", happened=NOW + hour * 60 * MINUTE + 1, received=NOW + hour * 60 * MINUTE + 2)
    seen, steps, has_more = set[str](), 0, True

    while has_more:
        followed = follow_by_time(shelf.read, TYPES, position, now=NOW + 300 * MINUTE)
        position, has_more = followed.position, followed.has_more
        seen |= set(names(followed.events))
        steps += 1

    assert seen == {"h0", "h1", "h2", "h3", "h4"}
    assert steps == 30
