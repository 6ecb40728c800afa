"""The module that shows a user's types is a program too."""

from __future__ import annotations

from tests.typing import sample


def test_the_sample_runs() -> None:
    sample.main()
