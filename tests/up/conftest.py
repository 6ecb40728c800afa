"""Running `postroad up`s, all gone after the test."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.up.up import Up, start

StartUp = Callable[..., Up]


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[StartUp]:
    """Start one and wait until it says that it is ready."""
    started: list[subprocess.Popen[str]] = []

    def begin(*flags: str, **env: str) -> Up:
        process = start(tmp_path, *flags, **env)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (tmp_path / "log").read_text()
        return Up(process, json.loads(line))

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=120)


@pytest.fixture
def up(start_up: StartUp) -> Up:
    """One that is ready."""
    return start_up()
