"""Runs weakincentives' own tests of its bus, sessions and main loop on our buses: `make outside`.

Its code is no part of this repository: the package and its source distribution are downloaded into `.venv-tests/`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from tests.environments import CACHE, ROOT, pip_for
from tests.sessions.weakincentives_environment import NO_PYTHON, PACKAGE, installed_python, weakincentives_python

SUITE = CACHE / PACKAGE.replace("==", "-")
TESTS = ("runtime", "test_events.py", "test_session.py", "test_session_snapshots.py", "test_thread_safety.py")
BUSES = ("local", "topic")


def main() -> int:
    """Run the tests once on each bus; 0 if all pass, or if they cannot run and this is not CI."""
    if installed_python() is None:
        return _not_run(NO_PYTHON)
    try:
        python = weakincentives_python()
    except pytest.skip.Exception as error:
        return _not_run(str(error))
    _download(python)
    return max(_run(python, bus) for bus in BUSES)


def _not_run(reason: str) -> int:
    print(f"not run: {reason}", file=sys.stderr)
    return 0 if os.environ.get("CI", "") in ("", "0", "false") else 1


def _download(python: Path) -> None:
    if SUITE.exists():
        return
    # Only this package as its sources: what pip needs to read them need not be built.
    options = ["--quiet", "--no-deps", "--no-binary", PACKAGE.partition("==")[0], "--dest", str(CACHE)]
    subprocess.run([*pip_for(python), "download", *options, PACKAGE], check=True)
    with tarfile.open(f"{SUITE}.tar.gz") as archive:
        archive.extractall(CACHE, filter="data")


def _run(python: Path, bus: str) -> int:
    print(f"== {PACKAGE} on our {bus} bus", flush=True)
    path = os.pathsep.join((str(Path(__file__).parent), str(ROOT / "src")))
    environment = os.environ | {"PYTHONPATH": path, "POSTROAD_OUTSIDE": bus}
    command = [str(python), "-m", "pytest", "-q", "-p", "on_our_buses", "-p", "no:cacheprovider", "-o", "addopts="]
    tests = [f"tests/{name}" for name in TESTS]
    with tempfile.TemporaryDirectory() as scratch:
        command += ["--basetemp", f"{scratch}/t"]
        return subprocess.run([*command, *tests], cwd=SUITE, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
