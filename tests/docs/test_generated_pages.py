"""Pages made by a program are what the program would make now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_errors_is_current() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == tool("error_page").page(), "repair: make errors"


@pytest.mark.slow
def test_the_pages_of_the_reference_are_current() -> None:
    made = tool("reference_pages").pages()

    assert {page.name for page, text in made.items() if page.read_text() != text} == set(), "repair: make reference"


def test_the_reference_of_the_commands_has_the_defaults_and_bounds_of_options() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()

    assert "| `--limit` `N` | At most this many (10, 1 to 1,000). |" in page
    assert "| `--batch` `N` | Rows per claim (50). |" in page
    assert "[[" not in page


def test_the_figures_of_the_last_soak_are_those_of_its_report() -> None:
    assert (ROOT / "docs" / "proof.md").read_text() == tool("proof_page").page(), "repair: make proof"
