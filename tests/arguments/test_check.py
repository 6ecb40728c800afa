"""Declared types of arguments, and the one function that refuses what does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from postroad.arguments import FINITE, check, check_settings, seconds_between, text, whole_number
from postroad.errors import ConfigurationError, InvalidInput, InvalidName, PostroadError

Name = text("[a-z]{1,4}", "a name", remedy="Use 1 to 4 small letters.")
Moment = Annotated[datetime, Meta(tz=True, description="a moment with a time zone")]
Finite = Annotated[float, Meta(ge=0, le=FINITE, description="a number of 0 or more")]


@dataclass(frozen=True)
class Limits:
    batch: Annotated[int, Meta(ge=1, le=10)] = 1
    fresh: bool = False
    policy: Literal["block", "skip"] = "block"
    anything: object = None

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, whole_number(1, 10)),
        (10**30, whole_number(1)),
        (0.5, seconds_between(0, 20)),
        (20, seconds_between(0, 20)),
        ("abcd", Name),
        (None, Name | None),
        (datetime.now(UTC), Moment),
        (1e300, Finite),
    ],
)
def test_what_fits_passes(value: object, kind: Any) -> None:
    check(value, kind, "field")


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        (0, whole_number(1, 10), "is not a whole number from 1 to 10"),
        (True, whole_number(1, 10), "is not a whole number from 1 to 10"),
        (1.0, whole_number(1), "is not a whole number from 1 on"),
        (math.nan, seconds_between(0, 20), "is not a number of seconds from 0 to 20"),
        (math.inf, Finite, "is not a number of 0 or more"),
        ("5", seconds_between(0, 20), "is not a number of seconds from 0 to 20"),
        ("abc\n", Name, "is not a name"),
        ("2030-01-01T00:00:00Z", Moment, "is not a moment with a time zone"),
    ],
)
def test_a_refusal_names_the_field_the_value_the_bounds_and_the_remedy(value: object, kind: Any, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(value, kind, "field")

    assert str(refused.value) == f"field: {value!r} {told}"
    assert refused.value.field == "field"
    assert refused.value.remedy in (f"Give {told.removeprefix('is not ')}.", "Use 1 to 4 small letters.")


def test_the_caller_chooses_the_error_and_the_remedy() -> None:
    with pytest.raises(InvalidName) as refused:
        check("A", Name, "group", InvalidName, remedy="Ask somebody.")

    assert refused.value.remedy == "Ask somebody."


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(PostroadError) as refused:
        check("A" * 10_000, Name, "name")

    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("field", "value"), [("batch", 11), ("fresh", 1), ("policy", "park")])
def test_settings_are_checked_field_by_field(field: str, value: object) -> None:
    options: dict[str, Any] = {field: value}

    with pytest.raises(ConfigurationError) as refused:
        Limits(**options)

    assert refused.value.field == field
