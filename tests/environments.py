"""Separate virtual environments for packages that cannot or should not be installed with Postroad's."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".venv-tests"
"""Not `.cache`, which belongs to the tool that builds the site: it empties that folder."""


def environment_with(name: str, requirements: Sequence[str], *, base: str = sys.executable) -> Path:
    """Return the Python of an environment with these requirements and Postroad's, made once with `base`."""
    wanted = [*requirements, *_dependencies()]
    text = "\n".join([base, *wanted])
    directory = CACHE / name
    python, marker = directory / "bin" / "python", directory / "made-for"
    with _alone(name):
        if not marker.exists() or marker.read_text() != text:
            _make(base, directory, wanted)
            marker.write_text(text)
    return python


def _dependencies() -> list[str]:
    dependencies: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return dependencies


def _make(base: str, directory: Path, wanted: Sequence[str]) -> None:
    subprocess.run([base, "-m", "venv", "--clear", "--without-pip", str(directory)], check=True, capture_output=True)
    # Bytecode is written at the first import: pulumi-aws has thousands of modules that nobody imports.
    options = ["install", "--no-compile"]
    done = subprocess.run([*pip_for(directory / "bin" / "python"), *options, *wanted], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"absent: {wanted[0]} could not be installed: {done.stderr.strip().splitlines()[-1:]}")


def pip_for(python: Path) -> list[str]:
    """Return the pip of this environment, working on another one: to unpack one for each takes as long as to use it."""
    return [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Let one test process at a time make an environment."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
