"""Recognising what comes again: the cache, and the bus around a bus."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from tests.bus.conftest import MakeBus
from tests.bus.vocabulary import QUICK, Identified, Placed

from postroad import Backend, Queue
from postroad.bus import (
    DeduplicatingEventBus,
    DeduplicationCache,
    DuplicateInProgress,
    EventBus,
    InProcessEventBus,
)
from postroad.errors import ConfigurationError
from postroad.testing import FakeClock


@pytest.fixture
def cache(clock: FakeClock) -> DeduplicationCache:
    return DeduplicationCache(window_seconds=300.0, clock=clock)


@pytest.fixture
def bus(cache: DeduplicationCache) -> DeduplicatingEventBus:
    return DeduplicatingEventBus(inner=InProcessEventBus(), cache=cache)


def test_a_key_is_seen_for_its_window(cache: DeduplicationCache, clock: FakeClock) -> None:
    cache.mark_seen("k")

    clock.advance(299)
    within = cache.seen("k")
    clock.advance(2)

    assert (within, cache.seen("k"), cache.seen("other")) == (True, False, False)


def test_a_key_is_begun_by_one_only(cache: DeduplicationCache) -> None:
    begun = [cache.begin("k"), cache.begin("k")]
    cache.forget("k")
    again = cache.begin("k")
    cache.mark_seen("k")

    assert begun == [True, False]
    assert (again, cache.begin("k"), cache.seen("k")) == (True, False, True)


def test_of_many_threads_one_begins() -> None:
    cache = DeduplicationCache()
    ready = threading.Barrier(16)
    begun: list[bool] = []

    def begin() -> None:
        ready.wait()
        begun.append(cache.begin("k"))

    threads = [threading.Thread(target=begin) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(begun) == 1


def test_the_oldest_keys_are_forgotten_first(clock: FakeClock) -> None:
    cache = DeduplicationCache(max_entries=3, clock=clock)

    for key in "abcd":
        cache.mark_seen(key)

    assert [cache.seen(key) for key in "abcd"] == [False, True, True, True]


def test_each_handler_sees_an_event_once(bus: DeduplicatingEventBus) -> None:
    one: list[object] = []
    two: list[object] = []
    event = Identified()
    bus.subscribe(Identified, one.append)
    bus.subscribe(Identified, two.append)

    results = [bus.publish(event), bus.publish(event)]

    assert isinstance(bus, EventBus)
    assert (one, two) == ([event], [event])
    assert all(result.ok for result in results)


def test_a_failed_handler_runs_again(bus: DeduplicatingEventBus) -> None:
    calls: list[int] = []

    def fails_once(_: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")

    event = Identified()
    bus.subscribe(Identified, fails_once)

    oks = [bus.publish(event).ok for _ in range(3)]

    assert (oks, len(calls)) == ([False, True, True], 2)


def test_an_async_handler_is_marked_when_it_has_ended(bus: DeduplicatingEventBus) -> None:
    calls: list[int] = []

    async def fails_once(_: object) -> None:
        await asyncio.sleep(0)
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")

    event = Identified()
    bus.subscribe(Identified, fails_once)

    oks = [bus.publish(event).ok for _ in range(3)]

    assert (oks, len(calls)) == ([False, True, True], 2)


def test_a_copy_that_comes_while_the_first_runs_is_refused(bus: DeduplicatingEventBus) -> None:
    nested: list[Any] = []
    event = Identified()

    def handler(_: object) -> None:
        if not nested:
            nested.append(bus.publish(event))

    bus.subscribe(Identified, handler)

    outer = bus.publish(event)

    (failure,) = nested[0].errors
    assert isinstance(failure.error, DuplicateInProgress)
    assert outer.ok


def test_unsubscribe_takes_the_original_handler(bus: DeduplicatingEventBus) -> None:
    seen: list[object] = []
    bus.subscribe(Identified, seen.append)

    removed = [bus.unsubscribe(Identified, seen.append), bus.unsubscribe(Identified, seen.append)]
    bus.publish(Identified())

    assert (removed, seen) == ([True, False], [])


def test_an_event_without_an_id_is_never_a_duplicate(bus: DeduplicatingEventBus) -> None:
    seen: list[object] = []
    bus.subscribe(Placed, seen.append)

    bus.publish(Placed())
    bus.publish(Placed())

    assert len(seen) == 2


def test_around_a_remote_bus_the_id_is_the_envelopes(
    make_bus: MakeBus, queue: Queue, cache: DeduplicationCache
) -> None:
    remote = make_bus(queue, replace(QUICK, echo="dispatch", enable_deduplication=False))
    bus = DeduplicatingEventBus(inner=remote, cache=cache)
    seen: list[object] = []
    bus.subscribe(Placed, seen.append)

    bus.publish(Placed())
    remote.receive_once()
    bus.publish(Placed())

    assert len(seen) == 2


def test_unhashable_handlers_are_told_apart(bus: DeduplicatingEventBus) -> None:
    class Collecting(list[object]):
        def __call__(self, event: object) -> None:
            self.append(event)

    one, two = Collecting(), Collecting()
    bus.subscribe(Identified, one)
    bus.subscribe(Identified, two)
    event = Identified(uuid4())

    bus.publish(event)
    bus.publish(event)

    assert (list(one), list(two)) == ([event], [event])


def test_events_that_a_handler_publishes_inside_its_process_are_told_apart(
    make_bus: MakeBus, queue: Queue, bus: DeduplicatingEventBus
) -> None:
    seen: list[object] = []
    bus.subscribe(Identified, seen.append)
    remote = make_bus(queue)

    def twice(_: object) -> None:
        bus.publish(Identified())
        bus.publish(Identified())

    remote.subscribe(Placed, twice)
    make_bus(queue).publish(Placed())

    remote.receive_once()

    assert len(seen) == 2


def test_it_has_the_registry_of_the_bus_inside_and_knows_when_that_receives(
    make_bus: MakeBus, queue: Queue, cache: DeduplicationCache
) -> None:
    remote = make_bus(queue)
    bus = DeduplicatingEventBus(inner=remote, cache=cache)
    here: list[bool] = []
    bus.subscribe(Placed, lambda _: here.append(bus.is_receiving_here))
    make_bus(queue).publish(Placed())

    remote.receive_once()

    assert bus.registry is remote.registry
    assert (here, bus.is_receiving_here) == ([True], False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("window_seconds", value) for value in (-1, float("nan"), "300", True)),
        *(("max_entries", value) for value in (0, -1, 1.5, True)),
    ],
)
def test_a_cache_that_cannot_work_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        DeduplicationCache(**{field: value})


def test_a_replay_through_it_sends_nothing(backend: Backend, cache: DeduplicationCache) -> None:
    archive = backend.archive("orders")
    seen: list[object] = []
    with backend.bus("orders", config=QUICK) as remote:
        remote.publish(Placed(1))
        archive.run_once()
        bus = DeduplicatingEventBus(inner=remote, cache=cache)
        bus.subscribe(Placed, seen.append)

        report = archive.replay(bus)

    assert (seen, report.replayed, archive.run_once()) == ([Placed(1)], 1, 0)


def test_a_key_that_is_marked_again_is_young_again(clock: FakeClock) -> None:
    cache = DeduplicationCache(max_entries=2, clock=clock)
    for key in ("a", "b", "a", "c"):
        cache.mark_seen(key)

    assert [cache.seen(key) for key in "abc"] == [True, False, True]
