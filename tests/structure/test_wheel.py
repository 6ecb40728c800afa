"""The package can be built, installed and used without the repository."""

from __future__ import annotations

import email
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.structure.builds import ROOT, built, clean_environment, install

__all__ = ["built"]

NOT_PYTHON = sorted(
    path.relative_to(ROOT / "src").as_posix()
    for path in (ROOT / "src" / "postroad").rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
)

pytestmark = pytest.mark.slow


def test_the_wheel_holds_every_file_that_is_not_python_too(built: Path) -> None:
    (wheel,) = built.glob("*.whl")

    held = set(zipfile.ZipFile(wheel).namelist())

    assert "postroad/py.typed" in held
    assert set(NOT_PYTHON) <= held


def test_the_wheel_registers_the_command_and_the_fixtures_for_pytest(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/entry_points.txt")]

    registered = zipfile.ZipFile(wheel).read(name).decode()

    assert "[console_scripts]\npostroad = postroad.cli:main" in registered
    assert "[pytest11]\npostroad = postroad.testing.pytest_plugin" in registered


def test_a_package_index_shows_the_readme_with_links_to_the_source_of_this_version(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    here = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", (ROOT / "README.md").read_text())

    shown = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", str(metadata.get_payload()))

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert not [link for _, link in here if link.startswith(source)], "links of the README are relative"
    places = {"!": f"{source}/raw/v{metadata['Version']}/", "": f"{source}/blob/v{metadata['Version']}/"}
    wanted = [(kind, link if link.startswith(("http", "#")) else places[kind] + link) for kind, link in here]
    assert shown == wanted
    assert {kind for kind, _ in shown} == {"!", ""}


@pytest.mark.long
def test_the_wheel_installs_into_a_clean_environment_and_runs(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    python = clean_environment(tmp_path / "env")

    install(python, str(wheel))
    where = subprocess.run(
        [python, "-c", "import postroad; print(postroad.__file__)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    version = subprocess.run(
        [python, "-m", "postroad", "version", "--json"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    played = subprocess.run(
        [python, "-m", "postroad", "demo", "--once", "--seconds", "2", "--json"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert str(tmp_path) in where.stdout
    assert '"version"' in version.stdout
    assert '"lost": 0' in played.stdout
