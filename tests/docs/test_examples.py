"""Every Python and shell block of every page runs as it stands, top to bottom, in an empty directory, twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.aws.emulators import ministack
from tests.docs.pages import PAGES, ROOT, blocks, has_something_to_run, run

ON_AWS = (ROOT / "docs" / "adapters" / "aws.md", ROOT / "docs" / "aws.md")
LANGUAGES = {"console", "ini", "json", "python", "sh", "sql", "text", "toml", "yaml", "dockerfile"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if has_something_to_run(page) and page not in ON_AWS],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_examples_of_a_page_run_twice(page: Path, tmp_path: Path) -> None:
    first = run(page, tmp_path)
    second = run(page, tmp_path)

    assert first.returncode == 0, first.stdout + first.stderr
    assert second.returncode == 0, second.stdout + second.stderr


@pytest.mark.slow
@pytest.mark.aws
@pytest.mark.parametrize("page", ON_AWS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_on_aws_run_on_an_emulator(page: Path, tmp_path: Path) -> None:
    (tmp_path / "emulator").mkdir()
    (tmp_path / "here").mkdir()
    with ministack(tmp_path / "emulator") as url:
        credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        first = run(page, tmp_path / "here", AWS_ENDPOINT_URL=url, **credentials)
        second = run(page, tmp_path / "here", AWS_ENDPOINT_URL=url, **credentials)

    assert first.returncode == 0, first.stdout + first.stderr
    assert second.returncode == 0, second.stdout + second.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block that looks like code and is not run would hide in another language, or in none."""
    found = blocks(page)

    assert {block.language for block in found} <= LANGUAGES
    assert [block.rest for block in found if block.rest] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_hides_inside_a_list(page: Path) -> None:
    """An indented block is not run, so it shows what cannot run here."""
    indented = set(re.findall(r"^ +```(\w+)$", page.read_text(), re.MULTILINE))

    assert indented <= {"console", "sql"}


@pytest.mark.slow
def test_the_first_example_is_short_and_prints_something(tmp_path: Path) -> None:
    first = next(block for block in blocks(ROOT / "README.md") if block.language == "python")

    done = run(ROOT / "README.md", tmp_path)

    assert len(first.code.strip().splitlines()) <= 15
    assert "OrderPlaced(order_id='A-1')" in done.stdout


def test_the_readme_opens_with_what_a_newcomer_needs() -> None:
    opening = "\n".join((ROOT / "README.md").read_text().splitlines()[:60])

    places = [
        opening.find(part)
        for part in ("# Postroad", "![", "git clone", "make up", "make test", "```python", "## Install", "| I want to")
    ]
    assert -1 not in places
    assert places == sorted(places)
