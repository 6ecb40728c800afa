"""A group receives the types that it handles, and a publish that nobody receives says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.platform.events import QUICK, OrderPlaced, OrderShipped, received
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.bus.groups import filter_of
from postroad.events import EventRegistry
from postroad.queues.markers import read_dead
from postroad.receiving import Receiver
from postroad.testing import FakeClock


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'events.db'}"
    with postroad.connect(url) as backend:
        yield backend


def types_of(backend: Backend, topic: str, group: str) -> list[str] | None:
    found = filter_of(backend.topic(topic), f"{topic}--{group}")
    return None if found is None else sorted(found.get("EventType", ()))


def test_a_group_receives_everything_until_its_first_member_starts(backend: Backend, topic: str) -> None:
    bus = backend.bus(topic, "billing", config=QUICK)
    bus.subscribe(OrderPlaced, lambda event: None)

    before = types_of(backend, topic, "billing")
    bus.receive_once()

    assert (before, types_of(backend, topic, "billing")) == (None, ["shop.placed"])


def test_a_type_that_nobody_in_the_group_handles_is_not_queued_for_it(backend: Backend, topic: str) -> None:
    bus = backend.bus(topic, "billing", config=QUICK)
    bus.subscribe(OrderPlaced, lambda event: None)
    bus.receive_once()

    shipped, placed = bus.publish(OrderShipped("A-1")), bus.publish(OrderPlaced("A-1"))

    assert (shipped.receivers, placed.receivers) == (0, 1)
    assert received(bus) == [OrderPlaced("A-1")]
    assert backend.queue(f"{topic}--billing").stats().visible == 0


def test_members_that_start_at_the_same_time_take_nothing_from_each_other(backend: Backend, topic: str) -> None:
    members = [backend.bus(topic, "billing", config=QUICK) for _ in range(2)]
    for bus, event_type in zip(members, (OrderPlaced, OrderShipped), strict=True):
        bus.subscribe(event_type, lambda event: None)
    threads = [threading.Thread(target=bus.receive_once) for bus in members]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert types_of(backend, topic, "billing") == ["shop.placed", "shop.shipped"]


def test_a_handler_that_is_added_later_lets_its_type_through(backend: Backend, topic: str) -> None:
    bus = backend.bus(topic, "billing", config=QUICK)
    bus.subscribe(OrderPlaced, lambda event: None)
    bus.start_receiver()

    bus.subscribe(OrderShipped, lambda event: None)

    assert types_of(backend, topic, "billing") == ["shop.placed", "shop.shipped"]


def test_a_handler_that_is_added_while_the_receiver_starts_lets_its_type_through(
    backend: Backend, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = backend.bus(topic, "billing", config=QUICK)
    bus.subscribe(OrderPlaced, lambda event: None)
    subscribing = threading.Thread(target=bus.subscribe, args=(OrderShipped, lambda event: None))
    keep_alive = Receiver.keep_alive

    def meanwhile(receiver: Receiver, owner: object) -> None:
        keep_alive(receiver, owner)
        subscribing.start()
        subscribing.join(0.2)

    monkeypatch.setattr(Receiver, "keep_alive", meanwhile)
    bus.start_receiver()
    subscribing.join()

    assert types_of(backend, topic, "billing") == ["shop.placed", "shop.shipped"]


def test_a_member_releases_what_only_another_member_handles(backend: Backend, topic: str) -> None:
    old, new = (backend.bus(topic, "billing", config=QUICK) for _ in range(2))
    old.subscribe(OrderPlaced, lambda event: None)
    new.subscribe(OrderShipped, lambda event: None)
    new.receive_once()
    old.publish(OrderShipped("A-1"))

    by_the_old = old.receive_once()
    unhandled = old.health().unhandled

    assert (by_the_old, unhandled) == ([], 1)
    assert received(new) == [OrderShipped("A-1")]
    assert backend.queue(f"{topic}--billing--dead").stats().visible == 0


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("takes_all", [False, True])
def test_a_member_without_a_handler_uses_up_no_attempt_of_the_others(
    backend: Backend, topic: str, fifo: bool, takes_all: bool
) -> None:
    handled: list[object] = []
    old, new = (backend.bus(topic, "billing", fifo=fifo, config=replace(QUICK, max_receives=1)) for _ in range(2))
    old.subscribe(OrderPlaced, handled.append)
    if takes_all:
        new.on_any(handled.append)
    else:
        new.subscribe(OrderShipped, handled.append)
    new.receive_once()
    events = [OrderShipped(f"A-{number}") for number in range(20)]
    old.publish_many(events)
    old.receive_once()

    for bus in (old, new):
        bus.start_receiver()
    eventually(lambda: len(handled) >= len(events))

    assert sorted(map(repr, handled)) == sorted(map(repr, events))
    assert old.health().dead_lettered == new.health().dead_lettered == 0
    assert old.health().unhandled > 0


def test_a_type_that_no_member_handles_any_more_ends_in_the_dead_letters(tmp_path: Path) -> None:
    clock = FakeClock()
    with postroad.connect(f"sqlite:///{tmp_path / 'events.db'}", clock=clock) as backend:
        config = replace(QUICK, max_receives=2)
        with backend.bus("orders", "billing", config=config) as gone:
            gone.subscribe(OrderShipped, lambda event: None)
            gone.receive_once()
        left = backend.bus("orders", "billing", config=config)
        left.subscribe(OrderPlaced, lambda event: None)
        left.publish(OrderShipped("A-1"))

        for _ in range(13):
            left.receive_once()
            clock.advance(60)
        meanwhile = left.health().dead_lettered
        for _ in range(5):
            left.receive_once()
            clock.advance(60)

        (letter,) = backend.queue("orders--billing--dead").peek()
        marker = read_dead(letter.attributes)
    assert meanwhile == 0
    assert marker is not None
    assert (marker.reason, marker.receives) == ("unhandled", 2)


@pytest.mark.parametrize(("fifo", "most_seconds"), [(False, 1_200), (True, 300)])
def test_a_leftover_type_is_looked_at_seldom_and_holds_its_key_for_minutes_at_most(
    tmp_path: Path, fifo: bool, most_seconds: int
) -> None:
    clock = FakeClock()
    with postroad.connect(f"sqlite:///{tmp_path / 'events.db'}", clock=clock) as backend:
        config = replace(QUICK, max_receives=2, retry_delays_seconds=(0.0,))
        with backend.bus("orders", "billing", fifo=fifo, config=config) as gone:
            gone.subscribe(OrderShipped, lambda event: None)
            gone.receive_once()
        left = backend.bus("orders", "billing", fifo=fifo, config=config)
        left.subscribe(OrderPlaced, lambda event: None)
        left.publish(OrderShipped("A-1"))

        seconds = 0
        while not left.health().dead_lettered and seconds < most_seconds:
            left.receive_once()
            clock.advance(1)
            seconds += 1

        assert left.health().dead_lettered == 1
        assert left.health().unhandled < 25


@pytest.fixture
def older(backend: Backend, tmp_path: Path) -> Iterator[Backend]:
    """The backend of a process with older code, which does not know the class of shipped orders."""
    registry = EventRegistry()
    registry.register(OrderPlaced)
    if backend.kind == "memory":
        pytest.skip("each connection to memory is a store of its own")
    with postroad.connect(backend.url, registry=registry) as older:
        yield older


def test_a_member_that_does_not_know_a_class_leaves_its_events_to_those_who_handle_them(
    backend: Backend, older: Backend, topic: str
) -> None:
    old, new = older.bus(topic, "billing", config=QUICK), backend.bus(topic, "billing", config=QUICK)
    old.subscribe(OrderPlaced, lambda event: None)
    new.subscribe(OrderShipped, lambda event: None)
    new.receive_once()
    new.publish(OrderShipped("A-1"))

    by_the_old = old.receive_once()
    health = old.health()

    assert (by_the_old, health.unhandled, health.dead_lettered) == ([], 1, 0)
    assert received(new) == [OrderShipped("A-1")]


def test_a_class_that_nobody_in_the_group_asked_for_is_a_dead_letter_where_it_is_unknown(
    backend: Backend, older: Backend, topic: str
) -> None:
    old = older.bus(topic, "billing", config=QUICK)
    old.subscribe(OrderPlaced, lambda event: None)
    backend.bus(topic).publish(OrderShipped("A-1"))

    old.receive_once()

    [letter] = backend.queue(f"{topic}--billing--dead").peek()
    found = read_dead(letter.attributes)
    assert found is not None
    assert found.reason == "unknown_type"


def test_what_the_named_types_exclude_is_released_also_if_its_class_is_unknown(
    backend: Backend, older: Backend, topic: str
) -> None:
    old = older.bus(topic, "billing", event_types=[OrderPlaced], config=QUICK)
    new = backend.bus(topic, "billing", event_types=[OrderPlaced, OrderShipped], config=QUICK)
    new.subscribe(OrderShipped, lambda event: None)
    new.publish(OrderShipped("A-1"))

    by_the_old = old.receive_once()

    assert (by_the_old, old.health().unhandled) == ([], 1)
    assert received(new) == [OrderShipped("A-1")]


def test_a_handler_for_every_event_removes_the_filter_for_good(backend: Backend, topic: str) -> None:
    audit = backend.bus(topic, "audit", config=QUICK)
    audit.on_any(lambda event: None)
    audit.receive_once()
    other = backend.bus(topic, "audit", config=QUICK)
    other.subscribe(OrderPlaced, lambda event: None)
    other.receive_once()

    result = other.publish(OrderShipped("A-1"))

    assert (types_of(backend, topic, "audit"), result.receivers) == ([], 1)
    assert received(audit) == [OrderShipped("A-1")]


def test_types_that_are_named_decide_alone(backend: Backend, topic: str) -> None:
    bus = backend.bus(topic, "billing", event_types=[OrderPlaced], config=QUICK)
    bus.subscribe(OrderShipped, lambda event: None)

    bus.receive_once()

    assert types_of(backend, topic, "billing") == ["shop.placed"]


def test_a_bus_that_is_made_again_keeps_the_filter_of_its_group(backend: Backend, topic: str) -> None:
    bus = backend.bus(topic, "billing", config=QUICK)
    bus.subscribe(OrderPlaced, lambda event: None)
    bus.receive_once()

    backend.bus(topic, "billing", config=QUICK)

    assert types_of(backend, topic, "billing") == ["shop.placed"]


def test_a_publish_that_nobody_receives_is_told_once_a_minute(
    backend: Backend, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = backend.bus(topic, config=QUICK)

    results = [bus.publish(OrderPlaced("A-1")) for _ in range(3)]

    assert [result.receivers for result in results] == [0, 0, 0]
    assert caplog.text.count("bus_no_receivers") == 1
    assert f"postroad bus group create {topic} GROUP" in caplog.text
    assert "type=shop.placed" in caplog.text


@pytest.mark.aws
@pytest.mark.slow
def test_where_no_filter_is_changed_unasked_the_remedy_is_named_once_for_each_type(
    ministack_url: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        bus = backend.bus(topic, "billing", config=replace(QUICK, max_receives=100))
        bus.subscribe(OrderPlaced, lambda event: None)
        for number in range(3):
            bus.publish(OrderShipped(f"A-{number}"))

        eventually(lambda: bus.receive_once() or bus.health().unhandled >= 3)

        assert types_of(backend, topic, "billing") is None
    assert caplog.text.count(f"postroad bus group set {topic} billing --types A,B") == 1
    assert caplog.text.count("bus_unhandled") >= 3


@pytest.mark.aws
@pytest.mark.slow
def test_on_sqs_a_copy_of_the_event_waits_for_a_member_that_has_a_handler(ministack_url: str, topic: str) -> None:
    handled: list[object] = []
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as backend:
        both, config = [OrderPlaced, OrderShipped], replace(QUICK, max_receives=1)
        old, new = (backend.bus(topic, "billing", event_types=both, config=config) for _ in range(2))
        old.subscribe(OrderPlaced, handled.append)
        new.subscribe(OrderShipped, handled.append)
        new.publish(OrderShipped("A-1"))
        eventually(lambda: old.receive_once() or old.health().unhandled)

        assert received(new) == [OrderShipped("A-1")]

        assert (handled, old.health().dead_lettered) == ([OrderShipped("A-1")], 0)
