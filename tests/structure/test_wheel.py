"""The package can be built, installed and used without the repository."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_PYTHON = sorted(
    path.relative_to(ROOT / "src").as_posix()
    for path in (ROOT / "src" / "postroad").rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, built without the network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_holds_every_file_that_is_not_python_too(built: Path) -> None:
    (wheel,) = built.glob("*.whl")

    held = set(zipfile.ZipFile(wheel).namelist())

    assert "postroad/py.typed" in held
    assert set(NOT_PYTHON) <= held


def test_the_source_archive_is_built(built: Path) -> None:
    assert len(list(built.glob("*.tar.gz"))) == 1


def test_the_wheel_installs_into_a_clean_environment_and_runs(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    python = clean_environment(tmp_path)

    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True, cwd=tmp_path
    )
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

    assert str(tmp_path) in where.stdout
    assert '"version"' in version.stdout


def clean_environment(directory: Path) -> str:
    """A new environment that borrows the dependencies of this one, and not the package."""
    subprocess.run([sys.executable, "-m", "venv", str(directory / "env")], check=True)
    python = str(directory / "env" / "bin" / "python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # Path files inside a folder that a path file names are not read, so the editable install stays out.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
