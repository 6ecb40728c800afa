"""Limits and settings: those of SQS hold on every adapter, and whatever breaks one changes nothing."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from postroad import errors
from postroad.queues import OutgoingMessage, Queue, QueueSpec
from postroad.testing.conformance import accepted, cases, needs, refuses
from postroad.testing.queues.fixture import QueueFixture, QueueSuite, bodies, take, take_one, texts

TOO_MANY = {f"attribute{n}": "v" for n in range(11)}
MIB = 1_048_576
Values = dict[str, tuple[Any, ...]]

BAD_MESSAGES: Values = {
    # Empty, a NUL, a control character, a non-character, a lone surrogate, bytes that are no UTF-8, neither of both.
    "body": ("", "a\x00b", "a\x0bb", "a\uffffb", "a\ud800b", b"\xff\xfe", 7),
    # Too many, no mapping, and names that are empty, have a space, are Amazon's or are too long.
    "attributes": (TOO_MANY, None, {"": "v"}, {"a b": "v"}, {"AWS.k": "v"}, {"k" * 257: "v"}),
    "attributes.k": ({"k": ""}, {"k": 1}, {"k": "\x00"}),
    "delay": (-1, 901, None, float("nan")),
    "group": ("", "g" * 129, "a b"),
    "dedup_id": ("d",),
}
BAD_FIFO_MESSAGES: Values = {
    "group": (None, "", "g" * 129, "é"),
    "dedup_id": (None, "", "d" * 129, "a b"),
    "delay": (1,),
}
BAD_SETTINGS: Values = {
    "visibility": (-1, 43_201),
    "retention": (59, 1_209_601),
    "delay": (901,),
    "receive_wait": (21,),
    "max_message_bytes": (1_023, MIB + 1),
    "max_receives": (0, 1_001),
    "content_dedup": (True,),
    "dedup_scope": ("group", "other"),
    "fifo": ("yes",),
    "redrive_allow": ((), ("q",) * 11),
    "dead_letter": ("dead.fifo",),
    "auto_delete_after": (0,),
}
BAD_NAMES = ["", "a" * 81, "a b", "a.b", "a/b", "é", "a.fifo.fifo", ".fifo", "../a", "a\n"]


class LimitRules(QueueSuite):
    """Sizes, characters, counts and names."""

    @pytest.mark.parametrize(
        ("fifo", "field", "value"),
        [(fifo, *case) for fifo, bad in ((False, BAD_MESSAGES), (True, BAD_FIFO_MESSAGES)) for case in cases(bad)],
    )
    def test_a_message_that_breaks_a_limit_is_refused(
        self, ground: QueueFixture, fifo: bool, field: str, value: Any
    ) -> None:
        queue, given = ground.create(fifo=fifo), {"group": "g", "dedup_id": "d"} if fifo else {}

        with refuses(errors.InvalidMessage, field, empty=queue):
            queue.send([OutgoingMessage(**{"body": "x", **given, field.partition(".")[0]: value})])

    def test_one_bad_message_refuses_the_whole_batch_and_is_named(self, queue: Queue) -> None:
        with refuses(errors.InvalidMessage, "messages[2].body", empty=queue):
            queue.send(texts("good", "good", "", "good"))

    @pytest.mark.parametrize(
        "messages", [[7], None, "text", iter(texts("one"))], ids=["a number", "nothing", "text", "an iterator"]
    )
    def test_what_is_no_list_of_messages_is_refused(self, queue: Queue, messages: Any) -> None:
        with pytest.raises(errors.InvalidMessage, match="is not an OutgoingMessage"):
            queue.send(messages)

        assert queue.receive() == []

    def test_a_body_of_the_limit_fits_and_one_byte_more_does_not(self, ground: QueueFixture) -> None:
        queue = ground.create(visibility=60)

        with pytest.raises(errors.MessageTooLarge):
            queue.send(texts("x" * (MIB + 1)))
        [result] = queue.send(texts("x" * MIB))

        assert result.ok
        assert len(take_one(queue).body) == MIB

    def test_attributes_count_towards_the_limit(self, queue: Queue) -> None:
        with pytest.raises(errors.MessageTooLarge):
            queue.send([OutgoingMessage(body="x" * (MIB - 10), attributes={"name": "value"})])

        assert queue.receive() == []

    def test_a_queue_may_have_a_lower_limit(self, ground: QueueFixture) -> None:
        queue = ground.create(max_message_bytes=1_024)

        with pytest.raises(errors.MessageTooLarge, match="1024"):
            queue.send(texts("é" * 513))
        [result] = queue.send(texts("é" * 512))

        assert result.ok
        assert queue.traits.max_message_bytes == 1_024

    def test_every_character_of_sqs_is_allowed(self, queue: Queue) -> None:
        body = "\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff"

        queue.send([OutgoingMessage(body=body, attributes={"k": body})])
        received = take_one(queue)

        assert received.body.decode() == body
        assert received.attributes["k"] == body

    @pytest.mark.parametrize("fifo", [False, True])
    def test_any_json_text_that_is_accepted_arrives_unchanged(self, ground: QueueFixture, fifo: bool) -> None:
        queue = ground.create(fifo=fifo, visibility=60, content_dedup=fifo)
        group = "g" if fifo else None

        sent = accepted(lambda text: queue.send(texts(text, group=group)))

        found: list[str] = []
        while len(found) < len(sent):
            delivery = take_one(queue)
            assert delivery.attributes == {}
            found.append(delivery.body.decode())
            queue.ack([delivery])
        assert sorted(found) == sorted(sent)
        assert queue.receive() == []

    def test_ten_attributes_and_the_longest_ids_fit(self, fifo_queue: Queue) -> None:
        attributes = {f"k{n}-_.x": "v" for n in range(10)}
        message = OutgoingMessage(body="x", attributes=attributes, group="!" * 128, dedup_id="~" * 128)

        fifo_queue.send([message])
        received = take_one(fifo_queue)

        assert received.attributes == attributes
        assert received.group == "!" * 128

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_a_queue_name_that_sqs_refuses_is_refused(self, ground: QueueFixture, name: str) -> None:
        with refuses(errors.InvalidName, "name"):
            ground.queues.create_queue(QueueSpec(name, fifo=name.endswith(".fifo")))

    @pytest.mark.parametrize(("name", "fifo"), [("plain", True), ("ordered.fifo", False)])
    def test_a_name_ends_with_fifo_exactly_when_the_queue_is(self, ground: QueueFixture, name: str, fifo: bool) -> None:
        with pytest.raises(errors.InvalidName):
            ground.queues.create_queue(QueueSpec(name, fifo=fifo))

        assert name not in ground.queues.queues()

    @pytest.mark.parametrize(("field", "value"), cases(BAD_SETTINGS))
    def test_a_setting_out_of_range_is_refused(self, ground: QueueFixture, field: str, value: Any) -> None:
        with refuses(errors.ConfigurationError, field):
            ground.create(**{field: value})


class SettingRules(QueueSuite):
    """Queues are made, found, changed and removed under their names."""

    def test_creating_a_queue_with_other_settings_names_the_differences(self, ground: QueueFixture) -> None:
        spec = ground.spec(visibility=5, retention=600)
        ground.queues.create_queue(spec)

        with pytest.raises(errors.QueueExists, match="visibility") as refused:
            ground.queues.create_queue(dataclasses.replace(spec, visibility=6, retention=700))

        assert refused.value.differences == {"visibility": (5, 6), "retention": (600, 700)}
        assert ground.queues.queue_spec(spec.name).visibility == 5

    def test_a_queue_is_found_and_listed_by_its_name(self, ground: QueueFixture) -> None:
        spec = ground.spec()
        ground.queues.create_queue(spec).send(texts("kept"))

        found = [ground.queues.queue(spec.name), ground.queues.create_queue(spec)]
        found[0].send(texts("sent"))

        assert [queue.name for queue in found] == [spec.name] * 2
        assert spec.name in ground.queues.queues()
        assert sorted(bodies(take(found[1], 2))) == ["kept", "sent"]

    def test_the_settings_of_a_queue_are_those_it_was_made_with(self, ground: QueueFixture) -> None:
        dead = ground.create("dead", fifo=True)
        spec = ground.spec(
            fifo=True,
            visibility=7,
            retention=600,
            delay=2,
            receive_wait=3,
            max_message_bytes=2_048,
            dead_letter=dead.name,
            max_receives=4,
            redrive_allow="none",
            content_dedup=True,
            dedup_scope="group",
        )

        ground.queues.create_queue(spec)

        assert ground.queues.queue_spec(spec.name) == spec

    def test_an_unknown_queue_is_not_found(self, ground: QueueFixture) -> None:
        unknown = ground.spec()

        for verb in (ground.queues.queue, ground.queues.delete_queue):
            with pytest.raises(errors.QueueNotFound, match=unknown.name):
                verb(unknown.name)
        with pytest.raises(errors.QueueNotFound, match=unknown.name):
            ground.queues.update_queue(unknown)

    @pytest.mark.parametrize("spec", [5, None, "jobs", {"name": "jobs"}, []])
    def test_what_is_no_spec_makes_and_changes_no_queue(self, ground: QueueFixture, spec: Any) -> None:
        before = ground.queues.queues()

        for verb in (ground.queues.create_queue, ground.queues.update_queue):
            with pytest.raises(errors.InvalidInput, match="is not a QueueSpec") as refused:
                verb(spec)
            assert refused.value.field == "spec"
            assert "QueueSpec(name)" in refused.value.remedy

        assert ground.queues.queues() == before

    @pytest.mark.parametrize("name", [5, None, b"jobs", [], "no name"])
    def test_what_is_no_name_finds_no_queue(self, ground: QueueFixture, name: Any) -> None:
        for verb in (ground.queues.queue, ground.queues.queue_spec, ground.queues.delete_queue):
            with refuses(errors.InvalidName, "name"):
                verb(name)

    def test_a_changed_visibility_holds_for_the_next_receive(self, ground: QueueFixture) -> None:
        queue = ground.filled("one", visibility=60)

        ground.change(queue, visibility=1)
        take_one(ground.queues.queue(queue.name))
        ground.outlast_lease()

        assert take_one(ground.queues.queue(queue.name)).receive_count == 2

    def test_a_dead_letter_queue_can_be_given_later(self, ground: QueueFixture) -> None:
        queue, dead = ground.create(), ground.create("dead")
        queue.send(texts("poison"))

        ground.change(queue, dead_letter=dead.name)
        changed = ground.queues.queue(queue.name)
        changed.reject([take_one(changed)], reason="bad")

        assert bodies([take_one(dead)]) == ["poison"]

    def test_a_deleted_queue_is_gone_with_what_it_held(self, ground: QueueFixture) -> None:
        spec = ground.spec()
        queue = ground.queues.create_queue(spec)
        queue.send(texts("old"))

        ground.queues.delete_queue(spec.name)

        assert spec.name not in ground.queues.queues()
        with pytest.raises(errors.QueueNotFound):
            ground.queues.queue(spec.name)
        with pytest.raises(errors.QueueNotFound):
            queue.send(texts("new"))
        assert ground.queues.create_queue(spec).receive() == []

    def test_a_queue_that_nobody_renews_is_removed_with_what_it_holds(self, ground: QueueFixture) -> None:
        queue = self._short_lived(ground)
        ground.queues.queue(queue).send(texts("one"))

        ground.jump(61)

        assert queue not in ground.queues.queues()
        with pytest.raises(errors.QueueNotFound):
            ground.queues.queue(queue)

    def test_receiving_renews_a_queue(self, ground: QueueFixture) -> None:
        name = self._short_lived(ground)

        for _ in range(3):
            ground.jump(40)
            ground.queues.queue(name).receive()

        assert name in ground.queues.queues()

    def test_a_queue_without_a_life_span_stays(self, ground: QueueFixture) -> None:
        queue = ground.create()

        ground.jump(30 * 86_400)

        assert queue.name in ground.queues.queues()

    def test_an_adapter_that_cannot_remove_idle_queues_says_so(self, ground: QueueFixture) -> None:
        needs(not ground.create().traits.auto_deletes, "the traits say that this adapter removes them")
        spec = ground.spec(auto_delete_after=60)

        with pytest.raises(errors.NotSupported):
            ground.queues.create_queue(spec)

        assert spec.name not in ground.queues.queues()

    def test_making_one_queue_from_many_threads_makes_one_queue(self, ground: QueueFixture) -> None:
        spec = ground.spec()

        with ThreadPoolExecutor(4) as threads:
            sent = list(threads.map(lambda _: ground.queues.create_queue(spec).send(texts("one")), range(4)))

        assert all(result.ok for [result] in sent)
        assert ground.queues.queue(spec.name).stats().visible == 4

    def _short_lived(self, ground: QueueFixture) -> str:
        needs(ground.create().traits.auto_deletes, "the traits say that the adapter removes no idle queues")
        return ground.create(auto_delete_after=60).name
