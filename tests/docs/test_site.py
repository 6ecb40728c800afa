"""The site is built offline without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT
from tests.sharing import made_once

pytestmark = [pytest.mark.slow, pytest.mark.long]

SITE = ROOT / "build" / "site"
CREDIT = "https://zensical.org/"
"""A link in the footer, which is followed only when somebody clicks it."""
_LOADED = re.compile(r"""<(?:script|img|iframe|link|source)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The site, built once: the builds of two processes would remove each other's pages."""
    made_once(tmp_path_factory, "site", _build)


def _build(_: Path) -> None:
    done = subprocess.run([sys.executable, "tools/site.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("built")
def test_every_page_is_part_of_the_site() -> None:
    docs = [page.relative_to(ROOT / "docs") for page in PAGES if page.is_relative_to(ROOT / "docs")]

    missing = [page for page in docs if not (SITE / page).with_suffix(".html").exists() and page.stem != "README"]

    assert missing == []


@pytest.mark.usefixtures("built")
def test_no_page_loads_anything_from_elsewhere() -> None:
    loaded = {address for page in SITE.rglob("*.html") for address in _LOADED.findall(page.read_text())}

    assert loaded <= {CREDIT}
    assert "fonts.g" not in "".join(sheet.read_text() for sheet in SITE.rglob("*.css"))


@pytest.mark.usefixtures("built")
def test_the_reference_shows_parameters_and_examples() -> None:
    page = (SITE / "reference" / "api" / "bus.html").read_text()

    assert "orphan_after" in page
    assert "Seconds after which the queue of a process that died is removed" in page
    assert 'class="language-python highlight"' in page


@pytest.mark.usefixtures("built")
def test_options_are_marked_so_that_they_stay_on_one_line() -> None:
    page = (SITE / "reference" / "cli.html").read_text()

    assert '<code class="option">--visibility-extension</code>' in page
    assert [page for page in SITE.rglob("*.html") if "{ .option }" in page.read_text()] == []
