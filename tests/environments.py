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
CACHE = ROOT / ".cache"


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
    subprocess.run([base, "-m", "venv", "--clear", str(directory)], check=True, capture_output=True)
    # Bytecode is written at the first import: pulumi-aws has thousands of modules that nobody imports.
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *wanted], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"absent: {wanted[0]} could not be installed: {done.stderr.strip().splitlines()[-1:]}")


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Let one test process at a time make an environment."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
