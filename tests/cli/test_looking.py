"""Commands that only look make no file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.terminal import Postroad

LOOKING = [
    ("queue", "list"),
    ("queue", "peek", "jobs"),
    ("bus", "group", "list", "orders"),
    ("task", "status", "t-1"),
    ("job", "list"),
    ("journal", "query", "--tenant", "acme"),
    ("agent", "list"),
    ("audit", "list"),
    ("audit", "verify"),
    ("token", "list"),
    ("why", "x"),
    ("doctor",),
]


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_look_at_a_missing_file_is_refused_and_makes_none(
    postroad: Postroad, words: tuple[str, ...], tmp_path: Path
) -> None:
    outcome = postroad(*words)

    assert outcome.code == 2
    assert "there is no postroad.db here; name it with --url" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["plan", "drift"])
def test_a_topology_is_compared_with_a_missing_file_as_with_an_empty_one(
    postroad: Postroad, verb: str, tmp_path: Path
) -> None:
    outcome = postroad("topology", verb, "transfers")

    assert outcome.code in (0, 1)
    assert not (tmp_path / "postroad.db").exists()
