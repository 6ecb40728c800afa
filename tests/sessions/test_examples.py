"""The examples of sessions and main loops run alone and soon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("04_sessions.py", [f"{who} ['research', 'review', 'write']" for who in ("this one has ", "the other has")]),
        ("05_request_response.py", ["main.py: line 7 is never reached", "ValueError('notes.txt is not Python')"]),
    ],
)
def test_an_example_is_short_and_shows_what_it_promises(name: str, says: list[str], tmp_path: Path) -> None:
    example = EXAMPLES / name

    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert [text for text in says if text not in done.stdout] == []
    assert len(example.read_text().splitlines()) <= 60
