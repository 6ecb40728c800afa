"""Messages that no handler may see: kept with their reason, never imported, never deleted unseen."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.bus.conftest import MakeBus
from tests.bus.proxies import Around
from tests.bus.vocabulary import QUICK, Placed

from postroad import Delivery, OutgoingMessage, Queue, QueueSpec, SendResult
from postroad.bus import RemoteEventBus
from postroad.bus.endpoints import Outlet, given_queue
from postroad.errors import Unavailable
from postroad.queues.markers import read_dead
from postroad.queues.sqlite import SQLiteQueues
from postroad.receiving import GivenDeadLetters
from postroad.testing import FakeClock


def envelope(**changes: Any) -> str:
    fields = {
        "event_type": "tests.bus.vocabulary:Placed",
        "event_id": str(uuid4()),
        "created_at": "2030-01-01T00:00:00+00:00",
        "publisher_id": "p",
        "payload": {"number": 1},
    }
    return json.dumps({name: value for name, value in {**fields, **changes}.items() if value is not ...})


POISON = [
    ("[]", "undecodable"),
    ("5", "undecodable"),
    ('"x"', "undecodable"),
    ('{"event_type": ', "undecodable"),
    (envelope() + "x", "undecodable"),
    ("[" * 100_000, "undecodable"),
    ("not json", "undecodable"),
    (envelope(event_type="os:system"), "unknown_type"),
    (envelope(event_type="builtins:eval"), "unknown_type"),
    (envelope(event_type="antigravity:fly"), "unknown_type"),
    (envelope(event_type="x" * 1_000_000), "unknown_type"),
    (envelope(payload={"number": "one"}), "invalid"),
    (envelope(payload={"number": None}), "invalid"),
    (envelope(payload=...), "invalid"),
    (envelope(event_id="7"), "invalid"),
    (envelope(version=0), "invalid"),
    (envelope(version=99), "invalid"),
]


@pytest.mark.parametrize(("body", "reason"), POISON, ids=[f"{reason}-{body[:20]}" for body, reason in POISON])
def test_sec02_poison_goes_to_the_dead_letters_and_the_next_message_is_handled(
    make_bus: MakeBus, queue: Queue, queues: SQLiteQueues, body: str, reason: str
) -> None:
    seen: list[object] = []
    bus = make_bus(queue)
    bus.subscribe(Placed, seen.append)
    # What a first event makes the bus itself import is not the point.
    queue.send([OutgoingMessage(envelope())])
    bus.receive_once()
    modules = set(sys.modules)
    queue.send([OutgoingMessage(body), OutgoingMessage(envelope())])

    handled = bus.receive_once()

    assert (handled, seen) == ([Placed()], [Placed()] * 2)
    (letter,) = queues.queue("work-dead").peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert (letter.body, marker.reason, marker.source, marker.receives) == (body.encode(), reason, "work", 1)
    assert queue.stats().visible == queue.stats().in_flight == 0
    assert set(sys.modules) == modules


def test_a_body_that_is_no_text_at_all_is_undecodable(make_bus: MakeBus, queue: Queue, queues: SQLiteQueues) -> None:
    class Garbling(Around):
        def receive(self, **options: Any) -> list[Delivery]:
            return [msgspec.structs.replace(found, body=b"\xff\xfe{") for found in self.queue.receive(**options)]

    bus = make_bus(Garbling(queue))
    queue.send([OutgoingMessage("{}")])

    bus.receive_once()

    marker = read_dead(queues.queue("work-dead").peek()[0].attributes)
    assert marker is not None
    assert (marker.reason, bus.health().dead_lettered) == ("undecodable", 1)


def test_an_extra_field_is_ignored(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue)
    bus.subscribe(Placed, lambda _: None)
    queue.send([OutgoingMessage(envelope(payload={"number": 2, "color": "red"}))])

    assert bus.receive_once() == [Placed(2)]


def test_a_missing_field_names_itself_in_the_dead_letter(make_bus: MakeBus, queue: Queue, queues: SQLiteQueues) -> None:
    bus = make_bus(queue)
    queue.send([OutgoingMessage(envelope(event_type="tests.bus.vocabulary:Stepped", payload={}))])

    bus.receive_once()

    marker = read_dead(queues.queue("work-dead").peek()[0].attributes)
    assert marker is not None
    assert marker.reason == "invalid"
    assert "session_id" in str(marker.error)


def test_without_dead_letters_poison_is_released(make_bus: MakeBus, queue: Queue) -> None:
    bus = make_bus(queue, dead_letters=False)
    queue.send([OutgoingMessage("[]")])

    bus.receive_once()

    assert queue.stats().visible == 1


def bus_with_letters(queue: Queue, letters: Any, clock: FakeClock) -> RemoteEventBus:
    return RemoteEventBus(
        outlet=Outlet(name="work", send=queue.send),
        inlet=given_queue(queue),
        dead_letters=GivenDeadLetters(letters, clock),
        config=replace(QUICK, max_receives=1),
        clock=clock,
    )


def test_a_given_dead_letter_queue_gets_the_body_byte_for_byte(queues: SQLiteQueues, clock: FakeClock) -> None:
    queue, letters = queues.create_queue(QueueSpec("plain")), queues.create_queue(QueueSpec("letters"))
    with bus_with_letters(queue, letters, clock) as bus:
        queue.send([OutgoingMessage(' {"odd":  1}', {"EventType": "odd"})])
        bus.receive_once()

    (letter,) = letters.peek()
    marker = json.loads(letter.attributes["DeadLetter"])
    assert letter.body == b' {"odd":  1}'
    assert marker == {
        "source": "plain",
        "receives": 1,
        "error": marker["error"],
        "type": "odd",
        "at": clock.now().isoformat(),
        "reason": "invalid",
    }
    assert queue.stats().visible == queue.stats().in_flight == 0


class Broken:
    """Dead letters that take nothing."""

    name = "letters"

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    def send(self, messages: Any) -> list[SendResult]:
        error = Unavailable("no letters today")
        if self._raises:
            raise error
        return [SendResult(ok=False, error=error) for _ in messages]


@pytest.mark.parametrize("raises", [True, False])
def test_when_the_dead_letters_take_nothing_the_original_stays(
    queues: SQLiteQueues, clock: FakeClock, raises: bool
) -> None:
    queue = queues.create_queue(QueueSpec("plain"))
    with bus_with_letters(queue, Broken(raises=raises), clock) as bus:
        queue.send([OutgoingMessage("[]")])
        bus.receive_once()

        assert (bus.health().dead_lettered, bus.health().failed) == (0, 1)
        assert bus.health().last_error == ("no letters today" if raises else None)
    assert queue.stats().visible == 1
