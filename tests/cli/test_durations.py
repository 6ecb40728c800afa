from __future__ import annotations

import pytest
import typer

from postroad.cli.parameters import duration, short_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("5m", 300), ("2h", 7_200), ("7d", 604_800), ("0", 0), ("0.5", 0.5), ("1.5m", 90)],
)
def test_a_duration_is_a_number_with_or_without_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1", "5x", "1e3", "nan", "inf", "5 m", "1:30", "\u0665"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        duration(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0.04, "0s"), (1.26, "1.3s"), (75.3, "75s"), (120, "2m"), (7_300, "2h"), (345_600, "4d")],
)
def test_a_duration_is_spoken_in_the_unit_a_person_would_use(seconds: float | None, words: str) -> None:
    assert short_duration(seconds) == words
