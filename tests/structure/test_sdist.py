"""The source archive holds everything: whoever unpacks it can run `make up` and `make test`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import httpx
import pytest
from tests.environments import ROOT
from tests.structure.builds import built, clean_environment, install

__all__ = ["built"]

pytestmark = [pytest.mark.slow, pytest.mark.long]

READ_THE_REPOSITORY = (
    "tests/docs/test_generated_pages.py",
    "tests/docs/test_links.py",
    "tests/docs/test_readme.py",
    "tests/structure/test_deploy.py",
    "tests/structure/test_environment.py",
    "tests/structure/test_project.py",
    "tests/structure/test_public_names.py",
)


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archive, with environments as `make setup` makes them; they borrow what is installed here."""
    (archive,) = built.glob("*.tar.gz")
    place = tmp_path_factory.mktemp("sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    folder = place / archive.name.removesuffix(".tar.gz")
    install(clean_environment(folder / ".venv"), "--no-build-isolation", str(folder))
    (folder / ".venv-ministack").mkdir()
    for environment, purpose in ((".venv", "run"), (".venv", "dev"), (".venv-ministack", "ministack")):
        (folder / environment / f".made-for-{purpose}").write_text(str(folder))
    return folder


def make(folder: Path, target: str, arguments: str) -> subprocess.Popen[str]:
    """Start a target, without the variables that belong to this run of the tests or to the make around it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROAD_", "PYTEST_", "MAKE"))}
    return subprocess.Popen(
        ["make", "--no-print-directory", target, f"ARGS={arguments}"],
        cwd=folder,
        env={name: value for name, value in kept.items() if name not in ("VENV", "PYTHON", "MFLAGS")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="this is not a clone")
def test_it_holds_every_file_of_the_repository_and_no_other(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    with tarfile.open(archive) as tar:
        held = {member.name.partition("/")[2] for member in tar.getmembers()}

    assert held - {"PKG-INFO"} == {name for name in listed if (ROOT / name).exists()}


def test_make_up_starts_it(unpacked: Path) -> None:
    with make(unpacked, "up", "--port 0 --json") as up:
        assert up.stdout is not None
        said = (json.loads(line) for line in up.stdout)
        ready = next(document for document in said if document["event"] == "ready")

        answer = httpx.get(ready["url"] + "/health", timeout=20)

        os.kill(ready["pid"], signal.SIGTERM)
        events = [document["event"] for document in said]
    assert answer.status_code == 200
    assert (up.returncode, "stopped" in events) == (0, True)
    assert Path(ready["data"]).parent == unpacked


def test_make_test_passes_where_tests_read_the_files_of_the_repository(unpacked: Path) -> None:
    process = make(unpacked, "test", f"-q -n 0 --assert=plain -m 'not slow' {' '.join(READ_THE_REPOSITORY)}")
    found, _ = process.communicate()

    assert process.returncode == 0, found
