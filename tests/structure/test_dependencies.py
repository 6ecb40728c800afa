"""What `pip install postroad` brings along: few packages, few megabytes, and nothing that an extra should bring."""

from __future__ import annotations

import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
MOST_PACKAGES = 14
MOST_MEGABYTES = 26


@pytest.fixture(scope="module")
def base() -> dict[str, Distribution]:
    """The packages of an install without extras, as they are installed here."""
    found: dict[str, Distribution] = {}
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    while wanted:
        requirement = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = distribution(requirement.name)
        assert requirement.specifier.contains(installed.version, prereleases=True), (
            f"{installed.name} {installed.version} is not {requirement}: run pip install -e '.[dev]'"
        )
        if installed.name.lower() not in found:
            found[installed.name.lower()] = installed
            wanted += [Requirement(text) for text in installed.requires or ()]
    return found


def test_a_base_install_has_few_packages(base: dict[str, Distribution]) -> None:
    print(*sorted(base))

    assert len(base) <= MOST_PACKAGES


def test_a_base_install_is_small(base: dict[str, Distribution]) -> None:
    files = (Path(str(file.locate())) for each in base.values() for file in each.files or ())
    size = sum(path.stat().st_size for path in files if path.is_file())

    print(f"{size / 2**20:.1f} MB with bytecode")
    assert size <= MOST_MEGABYTES * 2**20


@pytest.mark.parametrize("name", ["pydantic", "boto3", "psycopg", "litestar", "httpx", "cryptography"])
def test_what_is_optional_is_not_in_a_base_install(name: str, base: dict[str, Distribution]) -> None:
    assert name not in base
