"""A running `postroad up`, and what its processes cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.frame import WrongResult

FILE = "data.db"


@dataclass(frozen=True, slots=True)
class RunningUp:
    """Its address, its admin token, and the process of the supervisor."""

    url: str
    token: str
    pid: int

    @property
    def headers(self) -> dict[str, str]:
        """What a request of the admin needs."""
        return {"Authorization": f"Bearer {self.token}"}

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=self.headers)) as answer:
            body: bytes = answer.read()
            return body

    @property
    def server(self) -> int:
        """The process that serves HTTP."""
        parts: list[dict[str, Any]] = json.loads(self.get("/status"))["parts"]
        return next(int(part["pid"]) for part in parts if part["name"] == "server")

    @property
    def processes(self) -> list[int]:
        """The supervisor and all processes below it."""
        parents = {int(path.parent.name): _stat(path)[1] for path in Path("/proc").glob("[0-9]*/stat")}
        found = [self.pid]
        for parent in found:
            found += [pid for pid, above in parents.items() if above == str(parent)]
        return found


@contextmanager
def running_up(directory: Path) -> Iterator[RunningUp]:
    """`postroad up` on the directory's file, without a limit on requests."""
    command = ["-m", "postroad", "up", "--url", f"sqlite:///{directory}/{FILE}", "--port", "0", "--json"]
    environment = {**os.environ, "POSTROAD_LOG_LEVEL": "warning", "POSTROAD_RATE_LIMIT": "0"}
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment, cwd=directory
    ) as up:
        try:
            assert up.stdout is not None
            ready = json.loads(up.stdout.readline())
            yield RunningUp(ready["url"], ready["token"], up.pid)
        finally:
            up.send_signal(signal.SIGTERM)
            up.communicate()


def cpu_seconds(*pids: int) -> float:
    """The CPU time of these processes."""
    ticks = 0
    for pid in pids:
        fields = _stat(Path(f"/proc/{pid}/stat"))
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(path: Path) -> list[str]:
    """The fields of a process behind its name; none if it ended just now."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", "0", *("0" for _ in range(20))]


def status(pid: int, name: str) -> float:
    """A number of `/proc/PID/status`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def memory_bytes(*pids: int) -> float:
    """The memory of these processes; what they share counts in parts."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024.0


class Client:
    """One connection that stays open."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(str(address.hostname), address.port, timeout=60)
        self._headers = {**(headers or {}), "Content-Type": "application/json"}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of an answer that is well."""
        self._connection.request(method, path, body=body, headers=self._headers)
        answer = self._connection.getresponse()
        found = answer.read()
        if answer.status >= 300:
            raise WrongResult(f"{path}: {answer.status} {found[:200]!r}")
        return found

    def begin(self, path: str) -> None:
        """Ask for a stream, and wait for its first line."""
        self._connection.request("GET", path, headers=self._headers)
        if not self._connection.getresponse().fp.readline():
            raise WrongResult(f"{path}: the stream did not begin")
