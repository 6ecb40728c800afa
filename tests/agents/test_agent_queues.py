"""Agents' queues have leases, groups and dead letters, and lose nothing when a receiver is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import msgspec
import pytest
from tests.agents.conftest import Post, body_of, n_of

from postroad.errors import InvalidInput, QueueNotFound, StaleReceipt
from postroad.queues import Delivery, Queue, Watchable
from postroad.queues.markers import read_dead
from postroad.wiring import connect


@pytest.fixture
def heard(post: Post) -> Post:
    """`cat` and `dan` (whose order is total) listen to `ann` and `bob`."""
    post.register("ann", "bob", "cat")
    post.register("dan", order="total")
    post.agents.subscribe_many([(listener, producer) for listener in ("cat", "dan") for producer in ("ann", "bob")])
    return post


def test_a_leased_message_is_hidden_and_comes_back_in_its_place(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    [first] = heard.take("cat", 1)

    hidden = heard.take("cat")
    heard.clock.advance(31)
    back = heard.take("cat")

    assert hidden == []
    assert [(n_of(delivery), delivery.receive_count) for delivery in back] == [(1, 2), (2, 1)]
    assert back[0].message_id == first.message_id
    assert back[0].first_received_at == first.first_received_at


def test_a_group_in_flight_holds_back_its_own_and_no_other(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    heard.publish("bob", 3)

    first = heard.take("cat", 1)
    second = heard.take("cat")
    heard.agents.queue("cat").ack(first)
    third = heard.take("cat")

    assert [[n_of(delivery) for delivery in taken] for taken in (first, second, third)] == [[1], [3], [2]]
    assert (first[0].group, second[0].group) == ("ann", "bob")


def test_a_total_order_holds_back_everything_behind_a_failure(heard: Post) -> None:
    heard.publish("ann", 1)
    heard.publish("bob", 2)

    first = heard.take("dan", 1)
    blocked = heard.take("dan")
    heard.agents.queue("dan").release(first)
    again = heard.take("dan")

    assert blocked == []
    assert [n_of(delivery) for delivery in again] == [1, 2]
    assert {delivery.group for delivery in again} == {"dan"}


def test_what_waits_behind_a_blocked_group_keeps_its_order(heard: Post) -> None:
    heard.publish("ann", *range(300))
    held = heard.take("cat", 1)
    heard.publish("bob", 1_000)

    other = heard.take("cat")
    heard.agents.queue("cat").ack(held)

    assert [n_of(delivery) for delivery in other] == [1_000]
    assert heard.drain("cat") == list(range(1, 300))


def test_a_stale_receipt_changes_nothing_and_says_so(heard: Post) -> None:
    queue = heard.agents.queue("cat")
    heard.publish("ann", 1)
    [former] = heard.take("cat")
    heard.clock.advance(31)
    [holder] = heard.take("cat")

    results = [queue.ack([former])[0], queue.extend([former], seconds=9)[0], queue.release([former])[0]]

    assert all(isinstance(result.error, StaleReceipt) for result in results)
    assert queue.ack([holder])[0].ok
    assert not queue.ack([holder])[0].ok


@pytest.mark.parametrize("receipt", ["", "x", "1-2", "1-1-1", "9" * 40, "1-1-٣"])
def test_a_receipt_that_is_nobodys_is_stale(heard: Post, receipt: str) -> None:
    heard.publish("ann", 1)
    [held] = heard.take("cat")

    [result] = heard.agents.queue("cat").ack([_with_receipt(held, receipt)])

    assert isinstance(result.error, StaleReceipt)
    assert heard.agents.queue("cat").ack([held])[0].ok


def test_a_receipt_of_another_lane_is_stale(heard: Post) -> None:
    heard.publish("ann", 1)
    [held] = heard.take("cat")

    [result] = heard.agents.queue("dan").ack([held])

    assert isinstance(result.error, StaleReceipt)
    assert heard.agents.queue("cat").ack([held])[0].ok


def test_an_extended_lease_lasts_from_now_and_twelve_hours_at_most(heard: Post) -> None:
    queue = heard.agents.queue("cat")
    heard.publish("ann", 1)
    [held] = heard.take("cat")

    queue.extend([held], seconds=43_200)
    heard.clock.advance(43_199)
    hidden = heard.take("cat")
    queue.extend([held], seconds=43_200)
    heard.clock.advance(2)

    assert hidden == []
    assert heard.take("cat")[0].receive_count == 2


def test_a_release_for_later_holds_its_group_until_then(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    [held] = heard.take("cat", 1)

    heard.agents.queue("cat").release([held], after=10)
    early = heard.take("cat")
    delayed = heard.agents.stats("cat").delayed
    heard.clock.advance(11)

    assert early == []
    assert delayed == 1
    assert heard.drain("cat") == [1, 2]


def test_what_is_given_back_unhandled_costs_no_receive(heard: Post) -> None:
    heard.publish("ann", 1)
    queue = heard.agents.queue("cat")
    held = heard.take("cat")

    cast(Watchable, queue).undo(held)
    [again] = heard.take("cat")

    assert again.receive_count == 1
    assert not queue.ack(held)[0].ok
    assert queue.ack([again])[0].ok


def test_a_message_that_fails_too_often_is_dead_and_its_group_goes_on(heard: Post) -> None:
    strict = heard.configured(max_receives=2)
    heard.publish("ann", 1, 2)
    for _ in range(2):
        [held] = strict.take("cat", 1)
        strict.agents.queue("cat").release([held], error="boom")

    rest = strict.drain("cat")
    [dead] = heard.agents.dead_letters("cat")

    marker = read_dead(dead.attributes)
    assert rest == [2]
    assert marker is not None
    assert (marker.source, marker.receives, marker.error) == ("agents-cat.fifo", 2, "boom")
    assert (dead.receive_count, dead.message_id) == (2, held.message_id)
    assert heard.agents.stats("cat").dead == 1
    assert heard.agents.dead_letters("dan") == []


def test_dead_letters_are_read_on_behind_a_sequence_and_nothing_else(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    heard.agents.queue("cat").reject(heard.take("cat", 2), reason="poison")
    first, second = heard.agents.dead_letters("cat")

    for after in (first.sequence, str(first.sequence)):
        assert heard.agents.dead_letters("cat", after=after) == [second]
    for wrong in ("x", "", "-1", "1" * 30, True):
        with pytest.raises(InvalidInput, match="after") as refused:
            heard.agents.dead_letters("cat", after=wrong)
        assert (refused.value.field, "sequence" in refused.value.remedy) == ("after", True)


def test_a_rejected_message_is_dead_at_once(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    held = heard.take("cat", 1)

    [result] = heard.agents.queue("cat").reject(held, reason="poison", error="bad")

    [dead] = heard.agents.dead_letters("cat")
    marker = read_dead(dead.attributes)
    assert result.ok
    assert marker is not None
    assert (marker.reason, marker.error) == ("poison", "bad")
    assert heard.drain("cat") == [2]


def test_redriving_puts_dead_letters_behind_what_waits(heard: Post) -> None:
    heard.publish("ann", 1, 2, 3)
    queue = heard.agents.queue("cat")
    queue.reject(heard.take("cat", 2), reason="poison")
    heard.publish("ann", 4)

    moved = heard.agents.redrive("cat", limit=1)
    heard.publish("ann", 5)

    assert moved == 1
    assert heard.drain("cat") == [3, 4, 1, 5]
    assert heard.agents.redrive("cat") == 1
    assert heard.drain("cat") == [2]
    assert heard.agents.redrive("cat") == 0


def test_messages_older_than_the_retention_vanish_and_are_counted(heard: Post) -> None:
    brief = heard.configured(retention=60)
    brief.publish("ann", 1)
    heard.clock.advance(59)
    brief.publish("ann", 2)

    heard.clock.advance(2)

    assert brief.drain("cat") == [2]
    assert brief.agents.queue("cat").stats().expired == 1


def test_the_runner_sweeps_what_has_expired(heard: Post) -> None:
    brief = heard.configured(retention=60)
    brief.publish("ann", 1, 2)
    heard.take("cat", 1)
    heard.take("dan", 1)
    heard.clock.advance(3_600)
    brief.publish("ann", 3)

    brief.runner.run_once()

    assert (heard.agents.stats("cat").visible, heard.agents.stats("cat").in_flight) == (1, 0)
    assert brief.agents.queue("cat").stats().expired == 2
    assert brief.drain("dan") == [3]


def test_stats_count_by_state_and_tell_the_oldest_age(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    heard.publish("bob", 3)
    heard.agents.pause("cat", "bob")
    heard.take("cat", 1)
    heard.clock.advance(7)

    stats = heard.agents.stats("cat")

    assert (stats.visible, stats.in_flight, stats.delayed, stats.held, stats.dead) == (1, 1, 0, 1, 0)
    assert stats.oldest_age_seconds == pytest.approx(7)


def test_peeking_shows_every_message_in_order_and_changes_nothing(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    heard.publish("bob", 3)
    queue = heard.agents.queue("cat")
    heard.take("cat", 1)

    first = queue.peek(limit=1)
    rest = queue.peek(after=first[0].message_id)

    assert [(body_of(_delivery(message))["data"]["n"], message.state) for message in [*first, *rest]] == [
        (1, "in_flight"),
        (2, "visible"),
        (3, "visible"),
    ]
    assert queue.peek(limit=1) == first
    with pytest.raises(InvalidInput):
        queue.peek(after="0")


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("max_messages", {"max_messages": 0}),
        ("wait", {"wait": -1}),
        ("wait", {"wait": 20.5}),
        ("visibility", {"visibility": 43_201}),
    ],
)
def test_receive_refuses_arguments_out_of_range(heard: Post, field: str, arguments: dict[str, float]) -> None:
    with pytest.raises(InvalidInput) as refused:
        heard.agents.queue("cat").receive(**arguments)  # type: ignore[arg-type]  # out of range on purpose

    assert refused.value.field == field


def test_a_wall_clock_that_jumps_ends_no_lease(heard: Post) -> None:
    heard.publish("ann", 1)
    heard.take("cat")

    heard.clock.step(3_600)

    assert heard.take("cat") == []


def test_after_a_reboot_leases_are_over_and_releases_go_by_the_wall_clock(file_post: Post) -> None:
    file_post.register("ann", "bob", "cat")
    file_post.agents.subscribe_many([("cat", "ann"), ("cat", "bob")])
    file_post.publish("ann", 1)
    file_post.publish("bob", 2)
    queue = file_post.agents.queue("cat")
    [held, later] = queue.receive()
    queue.release([later], after=100)
    path = file_post.backend.url
    file_post.backend.close()

    file_post.clock.reboot(seconds=60)
    again = _opened(path, file_post)
    try:
        now = again.agents.queue("cat").receive(visibility=600)
        file_post.clock.advance(41)
        after = again.take("cat")
    finally:
        again.backend.close()

    assert [delivery.message_id for delivery in now] == [held.message_id]
    assert [delivery.message_id for delivery in after] == [later.message_id]


def test_sequences_grow_within_a_group(heard: Post) -> None:
    heard.publish("ann", 1, 2)
    first = [delivery.sequence for delivery in heard.take("cat")]
    heard.publish("ann", 3)
    heard.clock.advance(31)

    second = [delivery.sequence for delivery in heard.take("cat")]

    assert second[:2] == first
    assert second == sorted(set(second), key=lambda number: number or 0)


def test_receivers_that_compete_never_share_a_message(heard: Post) -> None:
    for n in range(30):
        heard.publish("ann" if n % 2 else "bob", n)

    def drain(_: int) -> list[int]:
        mine: list[int] = []
        queue = heard.agents.queue("cat")
        while heard.agents.stats("cat").visible:
            taken = queue.receive(max_messages=2)
            mine += [n_of(delivery) for delivery in taken]
            queue.ack(taken)
        return mine

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(drain, range(4)))

    assert sorted(n for part in parts for n in part) == list(range(30))


def test_a_waiting_receiver_notices_a_release(heard: Post) -> None:
    heard.publish("ann", 1)
    queue: Queue = heard.agents.queue("cat")
    held = heard.take("cat")
    releasing = threading.Timer(0.1, queue.release, [held])

    releasing.start()
    received = queue.receive(wait=15)
    releasing.join()

    assert [n_of(delivery) for delivery in received] == [1]


def test_the_lane_of_a_deleted_agent_is_gone(heard: Post) -> None:
    queue = heard.agents.queue("cat")
    heard.publish("ann", 1)
    held = heard.take("cat")

    heard.agents.delete("cat")

    with pytest.raises(QueueNotFound):
        queue.receive()
    assert not queue.ack(held)[0].ok


def _with_receipt(delivery: Delivery, receipt: str) -> Delivery:
    return msgspec.structs.replace(delivery, receipt=receipt)


def _delivery(message: object) -> Delivery:
    return message  # type: ignore[return-value]  # only the body is looked at


def _opened(url: str, post: Post) -> Post:
    return Post(connect(url, clock=post.clock), post.clock)


def test_a_lane_has_no_thread_and_no_file_of_its_own(file_post: Post, tmp_path: Path) -> None:
    file_post.register("ann")
    threads, files = set(threading.enumerate()), sorted(tmp_path.iterdir())

    listeners = [made.agent_id for made in file_post.agents.register_many(300)]
    file_post.agents.subscribe_many([(listener, "ann") for listener in listeners])
    file_post.publish("ann", 1)
    taken = [file_post.take(listener) for listener in listeners[:20]]

    assert all(len(each) == 1 for each in taken)
    assert set(threading.enumerate()) <= threads
    assert sorted(tmp_path.iterdir()) == files
