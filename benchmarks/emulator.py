"""An emulator of one's own for the rows that need AWS: ministack, or moto for the calls that ministack lacks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / ".venv-ministack" / "bin" / "ministack"
REGION = "us-east-1"
_START_SECONDS = 60.0


def version() -> str | None:
    """The emulator's version; None when it is not installed."""
    found = sorted(PROGRAM.parents[1].glob("lib/python*/site-packages/ministack-*.dist-info"))
    return f"ministack {found[-1].name.split('-')[1].removesuffix('.dist')}" if found and PROGRAM.exists() else None


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """Start ministack, give its URL, and end it."""
    port = _free_port()
    environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "LOG_LEVEL": "ERROR"}
    environment["TMPDIR"] = str(directory)
    yield from _served([str(PROGRAM)], environment, port, "/_ministack/health", directory)


@contextmanager
def running_moto(directory: Path) -> Iterator[str]:
    """Start a moto server, give its URL, and end it."""
    port = _free_port()
    command = [str(Path(sys.executable).parent / "moto_server"), "--host", "127.0.0.1", "--port", str(port)]
    yield from _served(command, dict(os.environ), port, "/moto-api/", directory)


def _served(command: list[str], environment: dict[str, str], port: int, path: str, directory: Path) -> Iterator[str]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=directory, env=environment, stdout=quiet, stderr=quiet)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}{path}", process)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise RuntimeError(f"the emulator did not answer at {url}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
