"""Where weakincentives runs: an environment of its own, since it needs a newer Python than Postroad does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "weakincentives"
PACKAGE = "weakincentives==0.16.0"
_VERSIONS = ("3.12", "3.13")


def weakincentives_python() -> Path:
    """A Python that has weakincentives and what Postroad needs, made once; skips where no such Python is installed."""
    python = CACHE / "bin" / "python"
    wanted = "\n".join([PACKAGE, *_dependencies()])
    with _alone():
        marker = CACHE / "made-for"
        if not marker.exists() or marker.read_text() != wanted:
            _make(_installed_python(), python, wanted)
            marker.write_text(wanted)
    return python


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script beside weakincentives, with Postroad's own sources."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(weakincentives_python()), "-W", "error", str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def _dependencies() -> list[str]:
    dependencies: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return dependencies


def _installed_python() -> str:
    beside = Path(sys.base_prefix).parent
    names = [name for version in _VERSIONS for name in (f"python{version}", *beside.glob(f"*{version}*/bin/python3"))]
    found = next((str(name) for name in (sys.executable, *names) if _is_new_enough(str(name))), None)
    return found or pytest.skip("no Python 3.12 is installed, which weakincentives needs")


def _is_new_enough(python: str) -> bool:
    check = "import sys; sys.exit(sys.version_info < (3, 12))"
    try:
        return subprocess.run([python, "-c", check], capture_output=True).returncode == 0
    except OSError:
        return False


def _make(with_python: str, python: Path, wanted: str) -> None:
    subprocess.run([with_python, "-m", "venv", "--clear", str(CACHE)], check=True, capture_output=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted.splitlines()]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"absent: {PACKAGE} could not be installed: {done.stderr.strip().splitlines()[-1:]}")


@contextmanager
def _alone() -> Iterator[None]:
    """One test process at a time makes the environment."""
    CACHE.parent.mkdir(exist_ok=True)
    with (CACHE.parent / "weakincentives.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
