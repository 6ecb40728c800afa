"""The AWS emulators as child processes that end with the test process."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINISTACK = ROOT / ".venv-ministack" / "bin" / "ministack"
MOTO = Path(sys.executable).parent / "moto_server"
_START_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


@contextmanager
def ministack(directory: Path) -> Iterator[str]:
    """A ministack of one's own; its URL."""
    port = free_port()
    environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "LOG_LEVEL": "ERROR"}
    environment["TMPDIR"] = str(directory)
    yield from _running([str(MINISTACK)], environment, port, "/_ministack/health", directory)


@contextmanager
def moto(directory: Path) -> Iterator[str]:
    """A moto server of one's own; its URL."""
    port = free_port()
    command = [str(MOTO), "--host", "127.0.0.1", "--port", str(port)]
    yield from _running(command, dict(os.environ), port, "/moto-api/", directory)


def _running(command: list[str], environment: dict[str, str], port: int, path: str, directory: Path) -> Iterator[str]:
    if not Path(command[0]).exists():
        pytest.skip(f"absent: {Path(command[0]).name} is not installed; `make setup` installs the emulators")
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url + path, process)
        yield url
    finally:
        process.kill()
        process.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the emulator ended with status {process.returncode}"
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise AssertionError(f"the emulator did not answer at {url} within {_START_SECONDS:.0f} s")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
