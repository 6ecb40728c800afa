"""The wheel and the source archive, built once for all test processes, and environments to try them in."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.sharing import made_once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, built without the network."""
    return made_once(tmp_path_factory, "dist", _build)


def _build(out: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def clean_environment(directory: Path) -> str:
    """Make an environment that borrows the dependencies and pip of this one, and not the package; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    python = str(directory / "bin" / "python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # Path files inside a folder that a path file names are not read, so the editable install stays out.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(python: str, *arguments: str) -> None:
    """Install with pip, from files that are here."""
    command = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
