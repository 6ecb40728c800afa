"""Buses on a backend's topics: everybody hears everything, or one of each group does."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from tests.bus.vocabulary import QUICK, Anything, Placed, Shipped, Stepped
from tests.waiting import eventually

from postroad import Backend, Blobs, OutgoingMessage, Queue, QueueSpec, codec
from postroad.bus import RemoteEventBus, TopicEventBus, current_context
from postroad.bus.endpoints import OwnQueue
from postroad.bus.groups import names_of
from postroad.errors import ConfigurationError, InvalidInput, InvalidName, QueueNotFound, Unavailable
from postroad.queues.markers import read_dead
from postroad.queues.overflow import read_reference
from postroad.testing import FakeClock


def own_queues(backend: Backend, topic: str = "orders") -> list[str]:
    return [name for name in backend.queues() if name.startswith(f"{topic}--p-")]


def listening(backend: Backend, *types: type, **options: Any) -> tuple[TopicEventBus, list[Any]]:
    """A bus whose receiver runs, and what its handlers saw."""
    seen: list[Any] = []
    bus = backend.bus("orders", **{"config": QUICK, **options})
    for event_type in types or (Placed,):
        bus.subscribe(event_type, seen.append)
    bus.start_receiver()
    return bus, seen


def test_every_bus_gets_every_event_once(backend: Backend) -> None:
    buses = [listening(backend) for _ in range(3)]
    publisher = buses[0][0]

    results = publisher.publish_many([Placed(number) for number in range(30)])

    eventually(lambda: all(len(seen) == 30 for _, seen in buses))
    eventually(lambda: all(backend.queue(name).stats().visible == 0 for name in own_queues(backend)))
    assert all(result.ok for result in results)
    assert all(sorted(event.number for event in seen) == list(range(30)) for _, seen in buses)
    assert isinstance(publisher, RemoteEventBus)


def test_what_is_published_once_the_receiver_started_is_received(backend: Backend) -> None:
    publisher = backend.bus("orders", config=QUICK)
    before = publisher.publish(Placed(1))
    _, seen = listening(backend)

    publisher.publish(Placed(2))

    eventually(lambda: seen)
    assert (before.ok, seen) == (True, [Placed(2)])


def test_own_queues_are_named_after_their_topic(backend: Backend) -> None:
    listening(backend)

    (name,) = own_queues(backend)
    spec = backend.queue_spec(name)

    assert len(name) == len("orders--p-") + 12
    assert (spec.dead_letter, spec.auto_delete_after) == ("orders--dead", 60.0)


def test_an_event_nobody_handles_in_a_broadcast_is_dropped_here(backend: Backend) -> None:
    bus, _ = listening(backend, Shipped)

    backend.bus("orders", config=QUICK).publish(Placed())

    eventually(lambda: bus.health().unhandled == 1)
    assert backend.queue("orders--dead").stats().visible == 0


def test_in_a_group_one_member_handles_each_event(backend: Backend) -> None:
    one, seen_by_one = listening(backend, group="workers")
    _, seen_by_two = listening(backend, group="workers")

    one.publish_many([Placed(number) for number in range(30)])

    eventually(lambda: len(seen_by_one) + len(seen_by_two) >= 30)
    time.sleep(0.05)
    numbers = sorted(event.number for event in [*seen_by_one, *seen_by_two])
    assert numbers == list(range(30))


def test_a_group_gets_what_was_published_while_no_member_ran(backend: Backend) -> None:
    backend.bus("orders", "workers", config=QUICK).close()
    backend.bus("orders", config=QUICK).publish(Placed(5))

    _, seen = listening(backend, group="workers")

    eventually(lambda: seen == [Placed(5)])


def test_two_groups_get_a_copy_each(backend: Backend) -> None:
    _, workers = listening(backend, group="workers")
    _, auditors = listening(backend, group="auditors")

    backend.bus("orders", config=QUICK).publish(Placed())

    eventually(lambda: (workers, auditors) == ([Placed()], [Placed()]))


def test_a_publisher_in_a_group_does_not_handle_aside_unless_told(backend: Backend) -> None:
    silent = backend.bus("orders", "workers", config=QUICK)
    aside = backend.bus("orders", "workers", config=QUICK, local=True)
    seen: list[object] = []
    for bus in (silent, aside):
        bus.subscribe(Placed, seen.append)

    results = [silent.publish(Placed(1)), aside.publish(Placed(2))]

    assert [result.handled_count for result in results] == [0, 1]
    assert seen == [Placed(2)]


def test_a_handler_that_always_fails_ends_in_the_dead_letters_of_its_group(backend: Backend) -> None:
    bus, seen = listening(backend, Shipped, group="workers")
    _, others = listening(backend, group="auditors")
    bus.subscribe(Placed, lambda _: 1 / 0)

    backend.bus("orders", config=QUICK).publish(Placed())
    backend.bus("orders", config=QUICK).publish(Shipped(2))

    dead = backend.queue("orders--workers--dead")
    eventually(lambda: dead.stats().visible == 1)
    marker = read_dead(dead.peek()[0].attributes)
    assert marker is not None
    assert (marker.reason, marker.receives, marker.source) == ("handler_failed", 3, "orders--workers")
    eventually(lambda: seen == [Shipped(2)] and others == [Placed()])


def test_poison_on_a_broadcast_goes_to_the_dead_letters_of_the_topic(backend: Backend) -> None:
    _, seen = listening(backend)

    backend.topic("orders").publish([OutgoingMessage("[]")])
    backend.bus("orders", config=QUICK).publish(Placed())

    eventually(lambda: seen == [Placed()])
    marker = read_dead(backend.queue("orders--dead").peek()[0].attributes)
    assert marker is not None
    assert marker.reason == "undecodable"


def test_what_exists_already_is_used_as_it_is(backend: Backend) -> None:
    backend.create_queue(QueueSpec("orders--workers", visibility=7))

    _, seen = listening(backend, group="workers")
    backend.bus("orders", config=QUICK).publish(Placed())

    eventually(lambda: seen)
    assert backend.queue_spec("orders--workers").visibility == 7


def test_closing_removes_the_own_queue_and_keeps_the_groups(backend: Backend) -> None:
    own, _ = listening(backend)
    group, _ = listening(backend, group="workers")

    own.close()
    group.close()

    assert own_queues(backend) == []
    assert "orders--workers" in backend.queues()
    assert [each.queue for each in backend.topic("orders").subscriptions()] == ["orders--workers"]


class Refusing:
    """A topic that takes no subscriptions."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def subscribe(self, *_: Any, **__: Any) -> None:
        raise self.error

    def unsubscribe(self, _: Queue) -> None:
        raise Unavailable("no network")


@pytest.mark.parametrize("error", [Unavailable("no network"), KeyboardInterrupt()], ids=["refused", "interrupted"])
def test_an_own_queue_whose_subscription_fails_is_not_left_behind(backend: Backend, error: BaseException) -> None:
    topic: Any = Refusing(error)
    own = OwnQueue(backend, topic, names_of("orders"), QUICK, None, 60.0).inlet

    with pytest.raises(type(error)):
        own.open()

    assert own_queues(backend) == []


def test_an_orphaned_queue_is_removed_and_a_groups_is_not(slow_backend: Backend, clock: FakeClock) -> None:
    crashed = slow_backend.bus("orders", config=QUICK)
    crashed._inlet.open()  # type: ignore[union-attr]  # a process that ends here never renews its queue
    slow_backend.bus("orders", "workers", config=QUICK)
    before = own_queues(slow_backend)

    clock.advance(61)
    slow_backend.bus("orders", config=QUICK).publish(Placed())

    assert len(before) == 1
    assert own_queues(slow_backend) == []
    assert "orders--workers" in slow_backend.queues()


def test_a_living_owner_renews_its_queue_even_when_it_does_not_receive(slow_backend: Backend, clock: FakeClock) -> None:
    bus, seen = listening(slow_backend)
    bus.stop_receiver()
    (name,) = own_queues(slow_backend)
    (own,) = bus._inlet.chores  # type: ignore[union-attr]  # waits for the sign of life itself

    for _ in range(6):
        clock.advance(31)
        eventually(lambda: (own.due() or 0) > clock.monotonic())
        slow_backend.bus("orders", config=QUICK).publish(Placed())

    assert own_queues(slow_backend) == [name]
    bus.start_receiver()
    eventually(lambda: len(seen) == 6)


def test_an_own_queue_that_was_removed_is_made_again_and_the_gap_is_told(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    bus, seen = listening(backend)
    (first,) = own_queues(backend)

    backend.delete_queue(first)

    eventually(lambda: bus.health().gaps == 1)
    (second,) = own_queues(backend)
    backend.bus("orders", config=QUICK).publish(Placed())
    eventually(lambda: seen == [Placed()])
    assert first != second
    assert "bus_gap" in caplog.text


def test_a_filter_by_type_keeps_other_events_out_of_the_queue(backend: Backend) -> None:
    bus, seen = listening(backend, Placed, Shipped, event_types=[Shipped])
    publisher = backend.bus("orders", config=QUICK)

    publisher.publish(Placed())
    publisher.publish(Shipped())

    eventually(lambda: seen == [Shipped()])
    assert bus.health().unhandled == 0


def test_a_filter_by_attribute_is_applied_again_on_receipt(backend: Backend) -> None:
    bus, seen = listening(backend, Stepped, attributes={"SessionId": ["s-1"]})
    publisher = backend.bus("orders", config=QUICK)

    publisher.publish(Stepped("s-2"))
    publisher.publish(Stepped("s-1"))
    stray = codec.encode(codec.wrap(Stepped("s-3"), publisher_id="p"))
    backend.queue(own_queues(backend)[0]).send([OutgoingMessage(stray, {"SessionId": "s-1"})])

    eventually(lambda: seen == [Stepped("s-1")] and bus.health().unhandled == 1)


def test_a_queue_has_the_filter_of_the_bus_made_last(backend: Backend) -> None:
    backend.bus("orders", "workers", event_types=[Placed], config=QUICK)
    backend.bus("orders", "workers", event_types=[Shipped], config=QUICK)

    (subscription,) = backend.topic("orders").subscriptions()

    assert subscription.filter == {"EventType": ("tests.bus.vocabulary:Shipped",)}


def test_with_fifo_and_without_local_handlers_everybody_sees_the_same_order(backend: Backend) -> None:
    buses = [listening(backend, fifo=True, local=False) for _ in range(2)]

    for number in range(10):
        for bus, _ in buses:
            bus.publish(Placed(number), key="k")

    eventually(lambda: all(len(seen) == 20 for _, seen in buses))
    assert buses[0][1] == buses[1][1]
    assert all(name.endswith(".fifo") for name in own_queues(backend))


def test_a_large_event_travels_whole(backend: Backend) -> None:
    _, seen = listening(backend, Anything)
    event = Anything("x" * 2_000_000)

    result = backend.bus("orders", config=QUICK).publish(event)

    eventually(lambda: seen)
    assert result.ok
    assert seen == [event]


def test_a_limit_of_the_bus_sends_smaller_events_by_reference(backend: Backend) -> None:
    _, seen = listening(backend, Anything)
    publisher = backend.bus("orders", config=replace(QUICK, max_message_bytes=1_000))
    backend.create_queue(QueueSpec("looked-at"))
    backend.topic("orders").subscribe(backend.queue("looked-at"))

    result = publisher.publish(Anything("x" * 2_000))

    eventually(lambda: seen == [Anything("x" * 2_000)])
    (stored,) = backend.queue("looked-at", overflow="fail").peek()
    assert result.ok
    assert len(stored.body) < 1_000


def test_with_overflow_fail_a_large_event_is_refused(backend: Backend) -> None:
    publisher = backend.bus("orders", config=replace(QUICK, max_message_bytes=1_000, overflow="fail"))

    result = publisher.publish(Anything("x" * 2_000))

    assert (result.ok, type(result.errors[0].error).__name__) == (False, "MessageTooLarge")


def blobs_of(backend: Backend) -> Blobs:
    blobs = backend.blobs()
    assert blobs is not None
    return blobs


@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_a_missing_or_changed_blob_is_a_failed_delivery_and_finally_a_dead_letter(backend: Backend, harm: str) -> None:
    bus = backend.bus("orders", "workers", config=QUICK)
    seen: list[object] = []
    bus.subscribe(Anything, seen.append)
    bus.publish(Anything("x" * 2_000_000))
    blobs = blobs_of(backend)
    reference = read_reference(bytes(backend.queue("orders--workers", overflow="fail").peek()[0].body))
    blobs.prune("overflow/", older_than=0)
    if harm == "changed":
        blobs.put(reference.key, b"something else")

    bus.start_receiver()

    eventually(lambda: backend.queue("orders--workers--dead").stats().visible == 1)
    assert seen == []


def test_the_answer_to_an_event_names_whom_it_is_for(backend: Backend) -> None:
    worker = backend.bus("requests", "workers", config=QUICK)
    client = backend.bus("requests", config=QUICK)
    answers = backend.bus("answers", attributes={"ReplyTo": [client.publisher_id]}, config=QUICK)
    seen: list[Any] = []
    answers.subscribe(Shipped, lambda _: seen.append(current_context()))
    responses = backend.bus("answers", config=QUICK)
    worker.subscribe(Placed, lambda event: responses.publish(Shipped(event.number)))
    answers.start_receiver()
    worker.start_receiver()

    asked = client.publish(Placed(3))
    backend.bus("requests", config=QUICK).publish(Placed(4))

    eventually(lambda: worker.health().handled == 2)
    eventually(lambda: len(seen) == 1)
    assert seen[0].envelope.causation_id == str(asked.event_id)


@pytest.mark.parametrize("group", ["", "a/b", "archive", "dead", "p-1", "a--b", "g" * 80, "ü"])
def test_a_group_that_cannot_be_named_is_refused(backend: Backend, group: str) -> None:
    with pytest.raises(InvalidName, match="group"):
        backend.bus("orders", group)

    assert backend.queues() == []


@pytest.mark.parametrize("topic", ["", "a b", "t" * 70, "a/b"])
def test_a_topic_that_cannot_be_named_is_refused(backend: Backend, topic: str) -> None:
    with pytest.raises(InvalidName, match="topic") as caught:
        backend.bus(topic)

    assert caught.value.field == "topic"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60"])
def test_an_orphans_time_is_a_number(backend: Backend, seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="orphan_after"):
        backend.bus("orders", orphan_after=seconds)


def test_an_empty_filter_is_refused(backend: Backend) -> None:
    with pytest.raises(InvalidInput, match="EventType"):
        backend.bus("orders", event_types=[])


def test_closing_the_backend_closes_its_buses(backend: Backend) -> None:
    bus, _ = listening(backend)

    backend.close()

    assert not bus.health().running


def test_a_deleted_group_queue_is_an_error_that_health_shows(backend: Backend) -> None:
    bus, _ = listening(backend, group="workers")

    backend.delete_queue("orders--workers")

    eventually(lambda: bus.health().last_error is not None)
    assert bus.health().running
    with pytest.raises(QueueNotFound):
        backend.queue("orders--workers")


def test_of_two_receivers_that_miss_the_own_queue_one_makes_it_again(backend: Backend) -> None:
    bus = backend.bus("orders", config=QUICK)
    bus.receive_once()
    inlet = bus._inlet
    assert inlet is not None
    lost = inlet.queue()

    made = [inlet.reopen(lost), inlet.reopen(lost)]
    bus.close()

    assert made == [True, False]
    assert not inlet.reopen(lost)
