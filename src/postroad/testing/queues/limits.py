"""The limits of SQS hold on every adapter, and whatever breaks one changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.errors import ConfigurationError, InvalidMessage, InvalidName, MessageTooLarge
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.testing.json_texts import accepted
from postroad.testing.queues.fixture import QueueFixture, QueueRules, take_one, texts

TOO_MANY = {f"attribute{n}": "v" for n in range(11)}
MIB = 1_048_576
Cases = dict[str, tuple[str, dict[str, Any]]]

BAD_MESSAGES: Cases = {
    "an empty body": ("body", {"body": ""}),
    "a NUL": ("body", {"body": "a\x00b"}),
    "a control character": ("body", {"body": "a\x0bb"}),
    "a non-character": ("body", {"body": "a\uffffb"}),
    "a lone surrogate": ("body", {"body": "a\ud800b"}),
    "bytes that are no UTF-8": ("body", {"body": b"\xff\xfe"}),
    "neither text nor bytes": ("body", {"body": 7}),
    "more than ten attributes": ("attributes", {"attributes": TOO_MANY}),
    "an empty attribute": ("attributes.k", {"attributes": {"k": ""}}),
    "an attribute that is no text": ("attributes.k", {"attributes": {"k": 1}}),
    "an attribute with a NUL": ("attributes.k", {"attributes": {"k": "\x00"}}),
    "attributes that are no mapping": ("attributes", {"attributes": None}),
    "a nameless attribute": ("attributes", {"attributes": {"": "v"}}),
    "an attribute name with a space": ("attributes", {"attributes": {"a b": "v"}}),
    "an attribute name of Amazon's": ("attributes", {"attributes": {"AWS.k": "v"}}),
    "an attribute name that is too long": ("attributes", {"attributes": {"k" * 257: "v"}}),
    "a negative delay": ("delay", {"delay": -1}),
    "a delay above fifteen minutes": ("delay", {"delay": 901}),
    "a delay that is nothing": ("delay", {"delay": None}),
    "a delay that is no number": ("delay", {"delay": float("nan")}),
    "an empty group": ("group", {"group": ""}),
    "a group that is too long": ("group", {"group": "g" * 129}),
    "a group with a space": ("group", {"group": "a b"}),
    "a dedup id on a standard queue": ("dedup_id", {"dedup_id": "d"}),
}
BAD_FIFO_MESSAGES: Cases = {
    "no group": ("group", {"group": None}),
    "an empty group": ("group", {"group": ""}),
    "a group that is too long": ("group", {"group": "g" * 129}),
    "a group that is not ASCII": ("group", {"group": "é"}),
    "no dedup id": ("dedup_id", {"dedup_id": None}),
    "an empty dedup id": ("dedup_id", {"dedup_id": ""}),
    "a dedup id that is too long": ("dedup_id", {"dedup_id": "d" * 129}),
    "a dedup id with a space": ("dedup_id", {"dedup_id": "a b"}),
    "a delay of its own": ("delay", {"delay": 1}),
}
BAD_NAMES = ["", "a" * 81, "a b", "a.b", "a/b", "é", "a.fifo.fifo", ".fifo", "../a", "a\n"]


def _cases(table: Cases) -> list[Any]:
    return [pytest.param(field, fields, id=name) for name, (field, fields) in table.items()]


class LimitRules(QueueRules):
    """Sizes, characters, counts and names."""

    @pytest.mark.parametrize(("field", "fields"), _cases(BAD_MESSAGES))
    def test_a_message_that_breaks_a_limit_is_refused(
        self, ground: QueueFixture, field: str, fields: dict[str, Any]
    ) -> None:
        queue = ground.create()

        with pytest.raises(InvalidMessage) as refused:
            queue.send([OutgoingMessage(**{"body": "x", **fields})])

        assert refused.value.field == field
        assert queue.receive() == []

    @pytest.mark.parametrize(("field", "fields"), _cases(BAD_FIFO_MESSAGES))
    def test_a_fifo_message_that_breaks_a_limit_is_refused(
        self, ground: QueueFixture, field: str, fields: dict[str, Any]
    ) -> None:
        queue = ground.create(fifo=True)

        with pytest.raises(InvalidMessage) as refused:
            queue.send([OutgoingMessage(**{"body": "x", "group": "g", "dedup_id": "d", **fields})])

        assert refused.value.field == field
        assert queue.receive() == []

    def test_one_bad_message_refuses_the_whole_batch_and_is_named(self, ground: QueueFixture) -> None:
        queue = ground.create()

        with pytest.raises(InvalidMessage) as refused:
            queue.send(texts("good", "good", "", "good"))

        assert refused.value.field == "messages[2].body"
        assert queue.receive() == []

    @pytest.mark.parametrize(
        "messages", [[7], None, "text", iter(texts("one"))], ids=["a number", "nothing", "text", "an iterator"]
    )
    def test_what_is_no_list_of_messages_is_refused(self, ground: QueueFixture, messages: Any) -> None:
        queue = ground.create()

        with pytest.raises(InvalidMessage, match="is not an OutgoingMessage"):
            queue.send(messages)

        assert queue.receive() == []

    def test_a_body_of_the_limit_fits_and_one_byte_more_does_not(self, ground: QueueFixture) -> None:
        queue = ground.create(visibility=60)

        with pytest.raises(MessageTooLarge):
            queue.send(texts("x" * (MIB + 1)))
        [result] = queue.send(texts("x" * MIB))

        assert result.ok
        assert len(take_one(queue).body) == MIB

    def test_attributes_count_towards_the_limit(self, ground: QueueFixture) -> None:
        queue = ground.create()

        with pytest.raises(MessageTooLarge):
            queue.send([OutgoingMessage(body="x" * (MIB - 10), attributes={"name": "value"})])

        assert queue.receive() == []

    def test_a_queue_may_have_a_lower_limit(self, ground: QueueFixture) -> None:
        queue = ground.create(max_message_bytes=1_024)

        with pytest.raises(MessageTooLarge, match="1024"):
            queue.send(texts("é" * 513))
        [result] = queue.send(texts("é" * 512))

        assert result.ok
        assert queue.traits.max_message_bytes == 1_024

    def test_every_character_of_sqs_is_allowed(self, ground: QueueFixture) -> None:
        queue = ground.create()
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

    def test_ten_attributes_and_the_longest_ids_fit(self, ground: QueueFixture) -> None:
        queue = ground.create(fifo=True)
        attributes = {f"k{n}-_.x": "v" for n in range(10)}
        message = OutgoingMessage(body="x", attributes=attributes, group="!" * 128, dedup_id="~" * 128)

        queue.send([message])
        received = take_one(queue)

        assert received.attributes == attributes
        assert received.group == "!" * 128

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_a_queue_name_that_sqs_refuses_is_refused(self, ground: QueueFixture, name: str) -> None:
        with pytest.raises(InvalidName) as refused:
            ground.queues.create_queue(QueueSpec(name, fifo=name.endswith(".fifo")))

        assert refused.value.field == "name"

    @pytest.mark.parametrize(("name", "fifo"), [("plain", True), ("ordered.fifo", False)])
    def test_a_name_ends_with_fifo_exactly_when_the_queue_is(self, ground: QueueFixture, name: str, fifo: bool) -> None:
        with pytest.raises(InvalidName):
            ground.queues.create_queue(QueueSpec(name, fifo=fifo))

        assert name not in ground.queues.queues()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("visibility", -1),
            ("visibility", 43_201),
            ("retention", 59),
            ("retention", 1_209_601),
            ("delay", 901),
            ("receive_wait", 21),
            ("max_message_bytes", 1_023),
            ("max_message_bytes", MIB + 1),
            ("max_receives", 0),
            ("max_receives", 1_001),
            ("content_dedup", True),
            ("dedup_scope", "group"),
            ("dedup_scope", "other"),
            ("fifo", "yes"),
            ("redrive_allow", ()),
            ("redrive_allow", ("q",) * 11),
            ("dead_letter", "dead.fifo"),
            ("auto_delete_after", 0),
        ],
    )
    def test_a_setting_out_of_range_is_refused(self, ground: QueueFixture, field: str, value: Any) -> None:
        with pytest.raises(ConfigurationError) as refused:
            ground.create(**{field: value})

        assert refused.value.field == field
