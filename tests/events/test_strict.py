"""What strict JSON cannot hold is refused on both sides, with the place at fault."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import field
from decimal import Decimal
from typing import Any

import pytest

from postroad.errors import InvalidMessage
from postroad.events import codec, event
from postroad.events.envelope import MAX_DEPTH, is_too_deep


@event
class Measured:
    real: float = 0.0
    reals: list[float] = field(default_factory=list)
    value: Any = None


@event
class Plain:
    text: str = ""
    number: int = 0
    amount: Decimal = Decimal(0)
    words: list[str] = field(default_factory=list)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def part_of_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


FAULTS = [
    (Measured(real=float("nan")), "payload.real"),
    (Measured(real=float("-inf")), "payload.real"),
    (Measured(reals=[1.0, float("inf")]), "payload.reals[1]"),
    (Measured(value=[{"a": float("nan")}]), "payload.value[0].a"),
    (Measured(value=object()), "payload.value"),
    (Measured(value={"a": [len]}), "payload.value.a[0]"),
    (Measured(value={object()}), "payload.value[0]"),
    (Measured(value=Measured), "payload.value"),
    (Measured(value={(1, 2): 3}), "payload.value"),
    (Measured(value={"\ud800": 3}), "payload.value"),
    (Measured(value="\ud800"), "payload.value"),
    (Measured(value=Measured(value=[float("nan")])), "payload.value.value[0]"),
    (Measured(value=10**5_000), "payload.value"),
    (Plain(text="fine \udfff"), "payload.text"),
    (Plain(words=["fine", "\ud83c"]), "payload.words[1]"),
    (Plain(number=float("nan")), "payload.number"),  # type: ignore[arg-type]  # a float where none belongs
    (Plain(amount=float("inf")), "payload.amount"),  # type: ignore[arg-type]  # a float where none belongs
    (Plain(number=10**5_000), "payload.number"),
    (Plain(text=object()), "payload.text"),  # type: ignore[arg-type]  # not text
]


@pytest.mark.parametrize(
    ("faulty", "path"), FAULTS, ids=[f"{number}-{path}" for number, (_, path) in enumerate(FAULTS)]
)
def test_what_json_cannot_hold_is_refused_with_its_path(faulty: object, path: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        codec.encode(codec.wrap(faulty, publisher_id="p"))

    assert caught.value.field == path
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize("value", [part_of_itself(), nested(65), nested(63), nested(100_000)], ids=len)
def test_a_nesting_without_end_or_too_deep_is_refused(value: Any) -> None:
    for deep in (Measured(value=value), Plain(words=value)):
        with pytest.raises(InvalidMessage, match="nested deeper than 64 levels") as caught:
            codec.wrap(deep, publisher_id="p")

        assert str(caught.value.field).startswith(("payload.value[0][0]", "payload.words[0][0]"))


def test_the_deepest_message_that_can_be_sent_can_be_read() -> None:
    deepest = Measured(value=nested(62))

    message = codec.encode(codec.wrap(deepest, publisher_id="p"))

    assert codec.unwrap(codec.decode(message)) == deepest


def test_an_envelope_made_by_hand_holds_only_strict_json() -> None:
    wrapped = codec.wrap(Plain(), publisher_id="p")

    with pytest.raises(InvalidMessage) as caught:
        dataclasses.replace(wrapped, payload={"x": [float("nan")]})

    assert caught.value.field == "payload.x[0]"


def test_text_around_the_payload_must_be_text_too() -> None:
    with pytest.raises(InvalidMessage) as caught:
        codec.encode(codec.wrap(Plain(), publisher_id="\ud800"))

    assert caught.value.field == "publisher_id"


VALID = codec.encode(codec.wrap(Measured(value="MARK"), publisher_id="p"))


def with_value(value: bytes) -> bytes:
    return VALID.replace(b'"MARK"', value)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "truncated"),
        (b" ", "truncated"),
        (b"\xef\xbb\xbf" + VALID, "malformed"),
        (b"\xff" + VALID, "byte 0: not UTF-8"),
        (VALID + b"x", "trailing"),
        (VALID[:-1], "truncated"),
        (VALID + VALID, "trailing"),
        (b"[]", "Expected `object`"),
        (b"5", "Expected `object`"),
        (b'"x"', "Expected `object`"),
        (b"null", "Expected `object`"),
        (with_value(b"NaN"), "byte"),
        (with_value(b"Infinity"), "byte"),
        (with_value(b"-Infinity"), "byte"),
        (with_value(b"01"), "byte"),
        (with_value(b"1."), "byte"),
        (with_value(b"'x'"), "byte"),
        (with_value(b"[1,]"), "byte"),
        (with_value(b'"\\ud800"'), "byte"),
        (with_value(b'"\\udc00\\ud800"'), "byte"),
        (with_value(b'"\xed\xa0\x80"'), "not UTF-8"),
        (with_value(b'"\xc0\x80"'), "not UTF-8"),
        (with_value(b'"\n"'), "byte"),
        (with_value(b"1" * 5_000), r"payload\[\.\.\.\]: .*out of range"),
        (with_value(b"-" + b"1" * 5_000), r"payload\[\.\.\.\]: .*out of range"),
        (with_value(b"1e400"), r"payload\[\.\.\.\]: .*out of range"),
        (with_value(b"[" * 65 + b"]" * 65), "nested deeper"),
        (with_value(b'{"a":' * 65 + b"1" + b"}" * 65), "nested deeper"),
        (with_value(b'[{"a":' * 40 + b"1" + b"}]" * 40), "nested deeper"),
        (with_value(b'["\\"[",' * 65 + b"1" + b"]" * 65), "nested deeper"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"x":' * 100_000, "nested deeper"),
        (b'{"payload":{"x":"' + b"[" * 100_000, "truncated"),
        (VALID[:-1] + b',"extra":"\xff"}', "not UTF-8"),
        (VALID[:-1] + b',"extra":' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_position_or_path(message: bytes, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        codec.decode(message)


@pytest.mark.parametrize("odd", [None, 5, [], {}, object()], ids=type)
def test_what_is_not_bytes_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidMessage, match="not bytes"):
        codec.decode(odd)


def test_text_with_a_lone_surrogate_is_refused_with_its_position() -> None:
    with pytest.raises(InvalidMessage, match="character 2"):
        codec.decode("{ \ud800")


@pytest.mark.parametrize(
    "value",
    [[[]] * 1_000, [{"a": [1, {"b": "]}"}]}] * 500, '[{"' * 500, "\\" * 99 + '"[', ['"', "\\", "\\\\[[["] * 100],
    ids=["wide", "nested", "text", "escapes", "quotes"],
)
def test_many_brackets_are_not_yet_a_deep_nesting(value: Any) -> None:
    sent = Measured(value=value)

    assert codec.unwrap(codec.decode(codec.encode(codec.wrap(sent, publisher_id="p")))) == sent


@pytest.mark.parametrize("depth", [1, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 500])
def test_depth_is_told_exactly(depth: int) -> None:
    value: Any = ["[" * 100, '\\"{']
    for level in range(depth - 1):
        value = [value, [], "]"] if level % 2 else {"}": value, "{": {}}

    assert is_too_deep(json.dumps(value).encode()) is (depth > MAX_DEPTH)
