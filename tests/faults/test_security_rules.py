"""Each security rule has at least one test that is named after it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
RULES = {1, 2, *range(4, 19)}


def test_every_security_rule_has_a_test_of_its_name() -> None:
    named = {
        int(number)
        for path in TESTS.rglob("test_*.py")
        for number in re.findall(r"^(?:async )?def test_sec(\d\d)_", path.read_text(), re.MULTILINE)
    }

    assert named == RULES
