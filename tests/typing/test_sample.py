"""A user's type checker helps them: it accepts right code and finds wrong code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.typing import sample

ROOT = Path(__file__).parents[2]
WRONG = {
    "a field of the wrong type": "OrderPlaced(order_id=1)",
    "a field that does not exist": "OrderPlaced(order_id='A', colour='red')",
    "a change of a frozen event": "OrderPlaced(order_id='A').order_id = 'B'",
    "a setting that does not exist": "postroad.QueueSpec('q', visibilty=1)",
    "a body of the wrong type": "postroad.OutgoingMessage(1)",
}
HEAD = """
import postroad

@postroad.event
class OrderPlaced:
    order_id: str

"""


def test_the_sample_runs() -> None:
    sample.main()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_finds_every_wrong_line(checker: str, tmp_path: Path) -> None:
    module = tmp_path / "wrong.py"
    module.write_text(HEAD + "\n".join(WRONG.values()) + "\n")

    done = subprocess.run([sys.executable, "-m", checker, str(module)], cwd=ROOT, capture_output=True, text=True)

    first = HEAD.count("\n") + 1
    missed = [what for number, what in enumerate(WRONG, first) if f"wrong.py:{number}:" not in done.stdout]
    assert missed == [], done.stdout
