"""The README: how to get it, one picture, one example, and links to all examples."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]


def test_the_first_commands_clone_the_repository_and_start_it() -> None:
    first = re.findall(r"^```\w+\n(.*?)^```$", README, re.M | re.S)[0]

    commands = [line.partition("#")[0].strip() for line in first.splitlines()]

    assert commands == [f"git clone {SOURCE}", f"cd {SOURCE.rpartition('/')[2]}", "make up", "make test"]


def test_there_is_one_picture_and_one_example() -> None:
    assert len(re.findall(r"^!\[", README, re.M)) == 1
    assert len(re.findall(r"^```python$", README, re.M)) == 1


def test_every_example_is_linked_under_its_number() -> None:
    linked = re.findall(r"\[(\d\d)\]\((examples/[^)]+)\)", README)

    assert sorted(path for _, path in linked) == sorted(f"examples/{path.name}" for path in ROOT.glob("examples/*.py"))
    assert all(path.startswith(f"examples/{number}_") for number, path in linked)


def test_the_address_of_the_repository_is_the_same_everywhere() -> None:
    files = [ROOT / "README.md", ROOT / "pyproject.toml", *(ROOT / ".github").rglob("*.*"), *ROOT.glob("deploy/*")]

    named = {found for file in files for found in re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", file.read_text())}

    assert named == {SOURCE}
