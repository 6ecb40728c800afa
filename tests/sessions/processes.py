"""Other processes for tests of sessions: started, heard and ended for sure."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def process(module: str, *arguments: str, package: str = "tests.sessions") -> Iterator[subprocess.Popen[str]]:
    """A module of these tests in a process of its own, from the moment it says that it is ready."""
    command = [sys.executable, "-W", "error", "-m", f"{package}.{module}", *arguments]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdin is not None
    try:
        assert started.stdout.readline().strip() == "ready"
        yield started
    finally:
        started.stdin.close()
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        started.stdout.close()
