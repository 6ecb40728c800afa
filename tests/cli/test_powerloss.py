"""`postroad verify powerloss` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.terminal import Postroad

FIELDS = ["synchronous", "images", "commits", "lost", "corrupt", "max_lost", "seed", "verdict"]


def test_it_prints_what_it_found_and_leaves_nothing_here(postroad: Postroad, tmp_path: Path) -> None:
    found = postroad("verify", "powerloss", "--images", "20", "--seed", "5", "--json")

    document = found.document
    assert found.code == 0
    assert list(document) == FIELDS
    assert (document["images"], document["seed"], document["verdict"]) == (20, 5, "ok")
    assert list(tmp_path.iterdir()) == []


def test_a_loss_makes_it_fail_and_it_says_how_to_repeat_it(postroad: Postroad) -> None:
    found = postroad("verify", "powerloss", "--images", "20", "--seed", "5", "--synchronous", "OFF")

    assert found.code == 1
    assert "violated: postroad verify powerloss --images 20 --seed 5 --synchronous OFF" in found.out


@pytest.mark.parametrize(
    ("option", "value"), [("--images", "0"), ("--images", "abc"), ("--synchronous", "EXTRA"), ("--seed", "x")]
)
def test_a_wrong_value_names_its_option(postroad: Postroad, option: str, value: str) -> None:
    found = postroad("verify", "powerloss", option, value)

    assert found.code == 2
    assert option in found.err
