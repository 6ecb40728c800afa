"""Every Python block of every page runs, top to bottom, in an empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.aws.emulators import ministack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
ON_AWS = ROOT / "docs" / "adapters" / "aws.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return _BLOCK.findall(page.read_text())


def run(page: Path, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    script = directory / "example.py"
    script.write_text("\n\n".join(blocks(page)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROAD_", "AWS_"))}
    command = [sys.executable, "-W", "error", str(script)]
    return subprocess.run(command, cwd=directory, env=environment | variables, capture_output=True, text=True)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page) and page != ON_AWS], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    done = run(page, tmp_path)

    assert done.returncode == 0, done.stderr


@pytest.mark.aws
def test_the_examples_of_the_aws_page_run_on_an_emulator(tmp_path: Path) -> None:
    (tmp_path / "emulator").mkdir()
    with ministack(tmp_path / "emulator") as url:
        credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        done = run(ON_AWS, tmp_path, AWS_ENDPOINT_URL=url, **credentials)

    assert done.returncode == 0, done.stderr


def test_the_first_example_is_short_and_prints_something(tmp_path: Path) -> None:
    first = blocks(ROOT / "README.md")[0]

    done = run(ROOT / "README.md", tmp_path)

    assert len(first.strip().splitlines()) <= 15
    assert "OrderPlaced(order_id='A-1')" in done.stdout


def test_the_readme_opens_with_what_a_newcomer_needs() -> None:
    opening = "\n".join((ROOT / "README.md").read_text().splitlines()[:60])

    places = [
        opening.find(part)
        for part in ("# Postroad", "![", "make up", "make test", "```python", "## Install", "| I want to")
    ]
    assert -1 not in places
    assert places == sorted(places)
