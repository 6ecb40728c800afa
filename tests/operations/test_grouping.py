"""Failure groups: dead letters by what they died of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operations.dead_letters import bury, make_queues

from postroad.errors import InvalidInput, QueueNotFound
from postroad.operations import Match, failure_groups, fingerprint, redrive
from postroad.queues import OutgoingMessage
from postroad.wiring import Backend, connect


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with connect("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


def test_the_same_class_and_place_is_one_group_whatever_the_numbers(backend: Backend) -> None:
    jobs, _ = make_queues(backend)
    placed = {"EventType": "orders.placed"}
    first = bury(jobs, "a", error="ValueError: order 17 of 'ann' [orders.py:place]", attributes=placed)
    bury(jobs, "b", error="ValueError: order 9 of 'bob' [orders.py:place]", attributes=placed)
    bury(jobs, "c", error="KeyError: order 17 [orders.py:place]", attributes=placed)
    bury(jobs, "d", error=None, attributes=placed)

    found = failure_groups(backend, "dead")

    assert (found.scanned, found.complete) == (4, True)
    assert [group.count for group in found.groups] == [2, 1, 1]
    largest = found.groups[0]
    assert largest.fingerprint == fingerprint("ValueError: order 1 [orders.py:place]", "orders.placed")
    assert (largest.event_type, largest.error) == ("orders.placed", "ValueError: order 17 of 'ann' [orders.py:place]")
    assert largest.sample_ids[0] == first[0]
    assert largest.first_sent_at <= largest.last_sent_at
    assert sorted(group.error or "" for group in found.groups[1:]) == ["", "KeyError: order 17 [orders.py:place]"]


def test_a_group_is_redriven_by_its_fingerprint(backend: Backend) -> None:
    jobs, _ = make_queues(backend)
    bury(jobs, "a", "b", error="ValueError: 1")
    bury(jobs, "c", error="KeyError: 1")
    largest = failure_groups(backend, "dead").groups[0]

    report = redrive(backend, "dead", match=Match(fingerprint=largest.fingerprint))

    assert report.moved == largest.count == 2
    assert [group.error for group in failure_groups(backend, "dead").groups] == ["KeyError: 1"]


def test_a_limit_ends_the_scan_and_says_so(backend: Backend) -> None:
    jobs, _ = make_queues(backend)
    bury(jobs, *(str(number) for number in range(12)))

    part, all_of_it = failure_groups(backend, "dead", limit=10), failure_groups(backend, "dead", limit=12)

    assert (part.scanned, part.complete) == (10, False)
    assert (all_of_it.scanned, all_of_it.complete) == (12, True)


def test_grouping_changes_nothing_and_sees_what_others_hold(backend: Backend) -> None:
    jobs, dead = make_queues(backend)
    bury(jobs, "a", "b")
    held = dead.receive(max_messages=1)
    before = dead.peek()

    found = failure_groups(backend, "dead")

    assert (found.scanned, dead.peek()) == (2, before)
    assert dead.ack(held)[0].ok


def test_messages_that_never_died_are_a_group_without_an_error(backend: Backend) -> None:
    _, dead = make_queues(backend)
    dead.send([OutgoingMessage("a", {"DeadLetter": "x:y"})])

    [group] = failure_groups(backend, "dead").groups

    assert (group.error, group.event_type, group.count) == (None, None, 1)


def test_an_empty_queue_has_no_groups_and_an_unknown_one_is_refused(backend: Backend) -> None:
    make_queues(backend)

    found = failure_groups(backend, "dead")

    assert (found.groups, found.scanned, found.complete) == ((), 0, True)
    with pytest.raises(QueueNotFound):
        failure_groups(backend, "nowhere")
    with pytest.raises(InvalidInput):
        failure_groups(backend, "dead", limit=0)
