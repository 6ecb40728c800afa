"""A test run fails when it leaves something behind or when CI lacks a store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CONFTEST = Path(__file__).parents[1] / "conftest.py"
CLEAN = "def test_clean(tmp_path): (tmp_path / 'mine').write_text('x')"
LEAVES_A_FILE = "import tempfile\ndef test_file(): tempfile.mkstemp(prefix='forgotten-')"
LEAVES_A_PROCESS = """
import subprocess, sys
def test_process(): subprocess.Popen([sys.executable, "-c", "import time; time.sleep(4)  # forgotten"])
"""
LACKS_A_STORE = "import pytest\ndef test_store(): pytest.skip('absent: the emulator is not installed')"


def run(directory: Path, source: str, **variables: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, directory / "conftest.py")
    (directory / "test_it.py").write_text(source)
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "temporary").mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", str(directory)]
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {
        "TMPDIR": str(directory / "temporary")
    }
    return subprocess.run(command, cwd=directory, env=environment | variables, capture_output=True, text=True)


def test_a_clean_run_passes_and_removes_its_directory(tmp_path: Path) -> None:
    done = run(tmp_path, CLEAN)

    assert done.returncode == 0, done.stdout
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(("source", "what"), [(LEAVES_A_FILE, "file"), (LEAVES_A_PROCESS, "process")])
def test_what_is_left_behind_fails_the_run_and_is_named(source: str, what: str, tmp_path: Path) -> None:
    done = run(tmp_path, source)

    assert done.returncode == 1
    assert f"{what} left behind: " in done.stdout
    assert "forgotten" in done.stdout
    assert "1 passed" in done.stdout.splitlines()[-1]


def test_a_secret_beside_the_sources_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "from pathlib import Path\ndef test_secret(): Path('postroad.secret').write_text('x')")

    assert done.returncode == 1
    assert "postroad.secret" in done.stdout.splitlines()[-2]


@pytest.mark.parametrize(("variables", "expected"), [({}, 0), ({"CI": "0"}, 0), ({"CI": "false"}, 0), ({"CI": "1"}, 1)])
def test_a_store_that_is_absent_fails_the_run_in_ci_only(
    variables: dict[str, str], expected: int, tmp_path: Path
) -> None:
    done = run(tmp_path, LACKS_A_STORE, **variables)

    assert done.returncode == expected
    assert ("not run in CI: " in done.stdout) == bool(expected)
