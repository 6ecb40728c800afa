"""Older payloads are lifted step by step; chains have no gaps."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from postroad.errors import InvalidInput, InvalidMessage
from postroad.events import Envelope, codec, event, upcast
from postroad.events.shapes import Upcaster


def same(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


@event(name="tests.customer-moved", version=3)
class CustomerMoved:
    customer: str
    street: str
    city: str


@upcast(CustomerMoved, from_version=1)
def split_the_address(payload: dict[str, Any]) -> dict[str, Any]:
    street, city = payload.pop("address").split(", ")
    return {**payload, "street": street, "city": city}


@upcast(CustomerMoved, from_version=2)
def rename_the_customer(payload: dict[str, Any]) -> dict[str, Any]:
    return {"customer": payload["who"], "street": payload["street"], "city": payload["city"]}


def envelope(version: int, **payload: object) -> Envelope:
    made = codec.wrap(CustomerMoved("Ada", "Main Road 1", "Bath"), publisher_id="p")
    return dataclasses.replace(made, version=version, payload=payload)


def test_the_version_is_written_when_it_is_not_one() -> None:
    wrapped = codec.wrap(CustomerMoved("Ada", "Main Road 1", "Bath"), publisher_id="p")

    assert wrapped.version == 3
    assert b'"version":3' in codec.encode(wrapped)
    assert codec.unwrap(codec.decode(codec.encode(wrapped))) == CustomerMoved("Ada", "Main Road 1", "Bath")


@pytest.mark.parametrize(
    ("version", "payload"),
    [
        (1, {"who": "Ada", "address": "Main Road 1, Bath"}),
        (2, {"who": "Ada", "street": "Main Road 1", "city": "Bath"}),
    ],
)
def test_an_older_payload_is_lifted_to_the_present_version(version: int, payload: dict[str, Any]) -> None:
    old = envelope(version, **payload)

    assert codec.unwrap(old) == CustomerMoved("Ada", "Main Road 1", "Bath")
    assert old.payload == payload, "the envelope is left as it was"


def test_a_newer_version_than_known_is_refused_and_says_so() -> None:
    with pytest.raises(InvalidMessage, match="4 is newer than version 3") as caught:
        codec.unwrap(envelope(4, customer="Ada"))

    assert caught.value.field == "version"


def test_an_upcast_that_fails_is_an_invalid_message() -> None:
    with pytest.raises(InvalidMessage, match="from version 1 failed: KeyError") as caught:
        codec.unwrap(envelope(1, who="Ada"))

    assert caught.value.field == "payload"


def make(version: int, steps: dict[int, Upcaster]) -> type:
    @event(version=version)
    class Changing:
        x: int = 0

    for from_version, step in steps.items():
        upcast(Changing, from_version=from_version)(step)
    return Changing


def test_an_upcast_that_returns_no_dict_is_an_invalid_message() -> None:
    wrong: Any = lambda payload: None  # noqa: E731
    changing = make(2, {1: wrong})
    wrapped = codec.wrap(changing(), publisher_id="p")

    with pytest.raises(InvalidMessage, match="returned NoneType"):
        codec.unwrap(dataclasses.replace(wrapped, version=1))


def test_a_missing_step_is_named_when_a_message_needs_it() -> None:
    changing = make(3, {2: same})
    wrapped = codec.wrap(changing(), publisher_id="p")

    with pytest.raises(InvalidMessage, match="from version 1 to 2"):
        codec.unwrap(dataclasses.replace(wrapped, version=1))


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3)])
def test_steps_may_be_registered_up_or_down(order: tuple[int, ...]) -> None:
    changing = make(4, dict.fromkeys(order, same))
    wrapped = codec.wrap(changing(), publisher_id="p")

    assert codec.unwrap(dataclasses.replace(wrapped, version=1)) == changing()


@pytest.mark.parametrize(
    ("steps", "from_version", "why"),
    [
        ((1,), 3, "gap: register the upcast from version 2 first"),
        ((3,), 1, "gap: register the upcast from version 2 first"),
        ((1,), 1, "already has an upcast from version 1"),
        ((), 4, "nothing to lift from version 4"),
        ((), 9, "nothing to lift from version 9"),
        ((), 0, "whole number"),
        ((), True, "whole number"),
        ((), "1", "whole number"),
    ],
)
def test_a_chain_with_a_gap_a_double_or_no_end_is_refused(steps: tuple[int, ...], from_version: Any, why: str) -> None:
    changing = make(4, dict.fromkeys(steps, same))

    with pytest.raises(InvalidInput, match=why):
        upcast(changing, from_version=from_version)


def test_a_class_without_versions_has_nothing_to_lift() -> None:
    with pytest.raises(InvalidInput, match="is at version 1"):
        upcast(int, from_version=1)


def test_what_is_no_class_or_no_function_is_refused() -> None:
    odd: Any = "CustomerMoved"
    with pytest.raises(InvalidInput, match="is not a class"):
        upcast(odd, from_version=1)
    with pytest.raises(InvalidInput, match="is not a function"):
        upcast(make(2, {}), from_version=1)(odd)
