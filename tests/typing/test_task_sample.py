"""A type checker finds a wrong argument of a task where it is submitted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRONG = {
    "an argument of the wrong type": "producer.submit(scrape, store_id=1)",
    "an argument that does not exist": "producer.submit(scrape, store_id='s', depht=1)",
    "an argument that is missing": "producer.submit(scrape)",
    "an option among the arguments": "producer.submit(scrape, store_id='s', request_id='r1')",
    "a wrong argument behind the context": "producer.submit(download, url=5)",
    "a wrong argument from an async program": "producer.asubmit(scrape, store_id=1)",
    "a result taken for another type": "text: str = producer.submit(scrape, 's').wait()",
    "an option that does not exist": "producer.options(dellay=1)",
    "a time as a text": "producer.options(at='tomorrow')",
    "an option of a task that does not exist": "task(max_atempts=3)",
    "errors that are not classes": "task(retry_on=('ValueError',))",
}
HEAD = """
from postroad import TaskProducer, task
from tests.typing.task_sample import download, scrape

def check(producer: TaskProducer) -> None:
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_finds_every_wrong_line(checker: str, tmp_path: Path) -> None:
    module = tmp_path / "wrong.py"
    module.write_text(HEAD + "".join(f"    {line}\n" for line in WRONG.values()))

    done = subprocess.run([sys.executable, "-m", checker, str(module)], cwd=ROOT, capture_output=True, text=True)

    first = HEAD.count("\n") + 1
    missed = [what for number, what in enumerate(WRONG, first) if f"wrong.py:{number}:" not in done.stdout]
    assert missed == [], done.stdout
