"""The conformance suite of topics: a new adapter is a subclass with the fixture `ground`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from postroad import errors
from postroad.queues import OutgoingMessage, Queue
from postroad.testing.conformance import Suite, accepted, cases, needs, refuses
from postroad.testing.queues.fixture import QueueFixture, bodies, drained, ordered, take, texts
from postroad.topics import Subscription, Topic

BAD_MESSAGES: dict[str, tuple[Any, ...]] = {
    "body": ("", "\x00", b"\xff"),
    "attributes": ({f"a{n}": "v" for n in range(11)},),
    "attributes.k": ({"k": ""},),
    "delay": (5,),
    "dedup_id": ("d",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFixture:
    """An adapter under test, with the queues it copies to.

    Attributes:
        topics: A store whose `topic(name, fifo=...)` makes topics.
        queues: The fixture of the queues that subscribe.
        settle: Waits until a changed subscription takes effect, where that takes time.
        fifo: Whether the adapter has FIFO topics.
    """

    topics: Any
    queues: QueueFixture
    settle: Callable[[], None] = lambda: None
    fifo: bool = True

    def topic(self, *, fifo: bool = False) -> Topic:
        """Make a topic, FIFO if `fifo`, under a name that no other test has."""
        needs(self.fifo or not fifo, "the adapter has no FIFO topics")
        topic: Topic = self.topics.topic(f"news-{uuid.uuid4().hex[:8]}{'.fifo' if fifo else ''}", fifo=fifo)
        return topic

    def subscribed(self, *, filter: Any = None, fifo: bool = False) -> tuple[Topic, Queue]:
        """Return a new topic, FIFO if `fifo`, and a new queue that gets the copies that `filter` lets through."""
        topic = self.topic(fifo=fifo)
        return topic, self.subscriber(topic, filter=filter, fifo=fifo)

    def subscriber(self, topic: Topic, *, filter: Any = None, fifo: bool = False) -> Queue:
        """Make a queue, FIFO if `fifo`, that gets the copies of `topic` that `filter` lets through."""
        queue = self.queues.create("copies", fifo=fifo, visibility=60)
        topic.subscribe(queue, filter=filter)
        self.settle()
        return queue


class TopicConformance(Suite):
    """Every promise of `Topic`, unless its traits say otherwise."""

    def test_every_subscribed_queue_gets_its_own_copy(self, ground: TopicFixture) -> None:
        topic = ground.topic()
        queues = [ground.subscriber(topic) for _ in range(3)]

        [result] = topic.publish([OutgoingMessage(body="news é", attributes={"EventType": "Placed"})])
        copies = [take(queue, 1)[0] for queue in queues]
        queues[0].ack([copies[0]])

        assert result.ok
        assert {copy.body for copy in copies} == {"news é".encode()}
        assert {copy.attributes["EventType"] for copy in copies} == {"Placed"}
        assert queues[1].ack([copies[1]])[0].ok

    def test_any_json_text_that_is_accepted_arrives_unchanged(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed()

        sent = accepted(lambda text: topic.publish(texts(text)))

        copies = take(queue, len(sent))
        assert sorted(bodies(copies)) == sorted(sent)
        assert all(copy.attributes == {} for copy in copies)
        assert queue.receive() == []

    def test_publishing_without_subscribers_is_ok(self, ground: TopicFixture) -> None:
        [result] = ground.topic().publish(texts("to nobody"))

        assert result.ok
        assert result.message_id

    def test_an_empty_batch_publishes_nothing(self, ground: TopicFixture) -> None:
        assert ground.topic().publish([]) == []

    def test_batches_above_ten_are_published_whole(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed()
        sent = [f"body-{n}" for n in range(23)]

        results = topic.publish(texts(*sent))

        assert [result.ok for result in results] == [True] * 23
        assert sorted(bodies(take(queue, 23))) == sorted(sent)

    def test_a_filter_lets_through_what_has_one_of_its_values(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed(filter={"EventType": ["Placed", "Paid"]})

        topic.publish(
            [OutgoingMessage(body=kind, attributes={"EventType": kind}) for kind in ("Placed", "Sent", "Paid")]
        )
        topic.publish(texts("without the attribute"))

        assert sorted(drained(queue, 2)) == ["Paid", "Placed"]

    def test_all_attributes_that_a_filter_names_must_match(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed(filter={"EventType": ["Placed"], "tenant": ["a", "b"]})

        topic.publish(
            [
                OutgoingMessage(body="both", attributes={"EventType": "Placed", "tenant": "b"}),
                OutgoingMessage(body="one", attributes={"EventType": "Placed", "tenant": "c"}),
                OutgoingMessage(body="other", attributes={"tenant": "a"}),
            ]
        )

        assert drained(queue, 1) == ["both"]

    @pytest.mark.parametrize(("filter", "copies"), [({"k": ["new"]}, ["new"]), (None, ["new", "old"])])
    def test_subscribing_again_replaces_the_filter(self, ground: TopicFixture, filter: Any, copies: list[str]) -> None:
        topic, queue = ground.subscribed(filter={"k": ["old"]})
        needs(topic.traits.filters_at_once, "the traits say that a changed filter takes its time")

        topic.subscribe(queue, filter=filter)
        ground.settle()
        topic.publish([OutgoingMessage(body=value, attributes={"k": value}) for value in ("old", "new")])

        assert sorted(drained(queue, len(copies))) == copies
        expected = None if filter is None else {"k": ("new",)}
        assert topic.subscriptions() == [Subscription(queue=queue.name, filter=expected)]

    def test_subscribing_twice_gives_one_copy(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed()

        topic.subscribe(queue)
        ground.settle()
        topic.publish(texts("once"))

        assert drained(queue, 1) == ["once"]

    def test_unsubscribing_stops_the_copies_and_leaves_what_is_there_and_the_others(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed()
        other = ground.subscriber(topic)
        topic.publish(texts("before"))

        first, second = topic.unsubscribe(queue), topic.unsubscribe(queue)
        ground.settle()
        topic.publish(texts("after"))

        assert (first, second) == (True, False)
        assert drained(queue, 1) == ["before"]
        assert sorted(drained(other, 2)) == ["after", "before"]

    def test_subscriptions_name_queues_and_filters(self, ground: TopicFixture) -> None:
        topic = ground.topic()
        plain, choosy = ground.subscriber(topic), ground.subscriber(topic, filter={"k": ["v", "w"]})

        expected = [
            Subscription(queue=plain.name, filter=None),
            Subscription(queue=choosy.name, filter={"k": ("v", "w")}),
        ]
        assert topic.subscriptions() == sorted(expected, key=lambda each: each.queue)

    def test_a_topic_asked_for_twice_is_one_topic(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed()

        ground.topics.topic(topic.name, fifo=False).publish(texts("news"))

        assert bodies(take(queue, 1)) == ["news"]

    def test_a_fifo_topic_keeps_the_order_of_each_group(self, ground: TopicFixture) -> None:
        topic = ground.topic(fifo=True)
        queues = [ground.subscriber(topic, fifo=True) for _ in range(2)]

        for n in range(5):
            topic.publish([*ordered("a", f"a{n}"), *ordered("b", f"b{n}")])

        for queue in queues:
            received = bodies(take(queue, 10))
            assert [body for body in received if body[0] == "a"] == [f"a{n}" for n in range(5)]
            assert [body for body in received if body[0] == "b"] == [f"b{n}" for n in range(5)]

    def test_a_fifo_topic_recognises_a_repeated_dedup_id(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed(fifo=True)

        [first] = topic.publish([OutgoingMessage(body="one", group="g", dedup_id="same")])
        queue.ack(take(queue, 1))
        [second] = topic.publish([OutgoingMessage(body="two", group="g", dedup_id="same")])

        assert second.ok
        assert second.message_id == first.message_id
        assert queue.receive() == []

    def test_after_five_minutes_a_dedup_id_is_new(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed(fifo=True)
        topic.publish(ordered("g", "one"))
        queue.ack(take(queue, 1))

        ground.queues.jump(301)
        topic.publish(ordered("g", "one"))

        assert bodies(take(queue, 1)) == ["one"]

    def test_a_standard_queue_may_subscribe_to_a_fifo_topic(self, ground: TopicFixture) -> None:
        topic = ground.topic(fifo=True)
        queue = ground.subscriber(topic)

        topic.publish(ordered("g", "1", "2"))

        assert sorted(bodies(take(queue, 2))) == ["1", "2"]

    def test_what_is_no_queue_can_neither_subscribe_nor_unsubscribe(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed()
        mistakes: list[Any] = [queue.name, 5, None, []]

        for mistake in mistakes:
            for verb in (topic.subscribe, topic.unsubscribe):
                with refuses(errors.InvalidInput, "queue", match="is not a Queue"):
                    verb(mistake)

        assert [each.queue for each in topic.subscriptions()] == [queue.name]

    @pytest.mark.parametrize("name", [5, None, b"news", [], "no name"])
    def test_what_is_no_name_makes_no_topic(self, ground: TopicFixture, name: Any) -> None:
        with refuses(errors.InvalidName, "name"):
            ground.topics.topic(name, fifo=False)

    def test_a_fifo_queue_cannot_subscribe_to_a_standard_topic(self, ground: TopicFixture) -> None:
        topic = ground.topic()
        queue = ground.queues.create(fifo=True)

        with refuses(errors.ConfigurationError, "queue"):
            topic.subscribe(queue)

        assert topic.subscriptions() == []
        assert topic.unsubscribe(queue) is False

    def test_a_message_above_the_limit_is_refused(self, ground: TopicFixture) -> None:
        topic, queue = ground.subscribed()
        limit = topic.traits.max_message_bytes

        with refuses(errors.MessageTooLarge, "messages[1].body", empty=queue):
            topic.publish(texts("fits", "x" * (limit + 1)))

    @pytest.mark.parametrize(("field", "value"), cases(BAD_MESSAGES))
    def test_a_message_that_breaks_a_limit_refuses_its_batch(
        self, ground: TopicFixture, field: str, value: Any
    ) -> None:
        topic, queue = ground.subscribed()
        bad = OutgoingMessage(**{"body": "x", field.partition(".")[0]: value})

        with refuses(errors.InvalidMessage, f"messages[1].{field}", empty=queue):
            topic.publish([*texts("good"), bad])

    @pytest.mark.parametrize(("field", "value"), cases({"group": (None, "a b"), "dedup_id": ("d" * 129,)}))
    def test_a_fifo_message_that_breaks_a_limit_is_refused(self, ground: TopicFixture, field: str, value: Any) -> None:
        topic = ground.topic(fifo=True)

        with refuses(errors.InvalidMessage, field):
            topic.publish([OutgoingMessage(**{"body": "x", "group": "g", "dedup_id": "d", field: value})])

    @pytest.mark.parametrize("filter", [{}, {"k": []}, {"k": "text"}, {"k": [1]}, {"": ["v"]}, ["k"]])
    def test_a_filter_that_makes_no_sense_is_refused(self, ground: TopicFixture, filter: Any) -> None:
        topic = ground.topic()
        queue = ground.queues.create()

        with pytest.raises(errors.InvalidInput, match="filter"):
            topic.subscribe(queue, filter=filter)

        assert topic.subscriptions() == []

    def test_a_batch_reaches_all_queues_or_none(self, ground: TopicFixture) -> None:
        topic = ground.topic()
        needs(topic.traits.atomic_batch, "the traits say that a batch is not published as one")
        wide, narrow = ground.subscriber(topic), ground.queues.create("narrow", max_message_bytes=1_024)
        topic.subscribe(narrow)

        with pytest.raises(errors.MessageTooLarge):
            topic.publish(texts("small", "x" * 2_000))

        assert wide.receive() == []
        assert narrow.receive() == []

    def test_a_deleted_queue_neither_breaks_publishing_to_the_others_nor_subscribes(self, ground: TopicFixture) -> None:
        topic = ground.topic()
        gone, stays = ground.subscriber(topic), ground.subscriber(topic)

        ground.queues.queues.delete_queue(gone.name)
        [result] = topic.publish(texts("news"))

        assert result.ok
        assert bodies(take(stays, 1)) == ["news"]
        with pytest.raises(errors.QueueNotFound):
            topic.subscribe(gone)
