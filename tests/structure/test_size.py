"""The package stays small: few files, few lines, short walks through the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "postroad"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MOST = {
    "files": 456,
    "lines": 91_500,
    "Protocols": 40,
    "hand-written checks": 100,
    "fmt: skip": 20,
    "files of an event": 38,
    "files of an outbox row": 50,
    "files of a task": 45,
}
MAP = (ROOT / "docs" / "map.md").read_text()
WALKS = {"event": "an event", "row": "an outbox row", "task": "a task"}


def in_source(pattern: str) -> int:
    return sum(len(re.findall(pattern, path.read_text(), re.M)) for path in SOURCES)


@pytest.fixture(scope="module")
def visited() -> dict[str, list[str]]:
    """Return the files that each walk visits."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "walk.py", "--files"], capture_output=True, text=True, check=True
    )
    walks = re.split(r"^(\w+): .*$", done.stdout, flags=re.M)[1:]
    return {name: files.split() for name, files in zip(walks[::2], walks[1::2], strict=True)}


def test_the_package_stays_small(visited: dict[str, list[str]]) -> None:
    figures = {
        "files": len(SOURCES),
        "lines": in_source(r"\n"),
        "Protocols": in_source(r"^class \w+\(.*\bProtocol\b"),
        "hand-written checks": in_source(r"^ *def _?check_"),
        "fmt: skip": in_source(r"# fmt: (skip|off)"),
    } | {f"files of {what}": len(visited[name]) for name, what in WALKS.items()}

    print(*(f"{what}: {figure} (at most {MOST[what]})" for what, figure in figures.items()), sep="\n")
    assert {what: figure for what, figure in figures.items() if figure > MOST[what]} == {}


def test_the_map_has_the_line_of_every_folder() -> None:
    folders = [PACKAGE, *(init.parent for init in sorted(PACKAGE.glob("*/__init__.py")))]
    lines = {folder.name: str(ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))) for folder in folders}

    listed = dict(re.findall(r"^\| `(\w+)/` \| (.+) \|$", MAP, re.M))

    assert listed == {name: text.splitlines()[0] for name, text in lines.items() if name != "postroad"}


@pytest.mark.parametrize("name", WALKS)
def test_the_map_names_every_file_of_a_walk(name: str, visited: dict[str, list[str]]) -> None:
    section = MAP.split(f"## The walk of {WALKS[name]}\n")[1].split("\n## ")[0]

    named = set(re.findall(r"`([\w/]+\.py)`", section))

    assert set(visited[name]) - named == set(), "the map leaves them out"
    assert {file for file in named if not (PACKAGE / file).is_file()} == set(), "the map names files that are not there"
