"""A real `postroad up` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

POSTROAD = [sys.executable, "-m", "postroad"]


@dataclass(frozen=True, slots=True)
class Up:
    """One that is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]

    def get(self, path: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.ready['token']}"}
        return httpx.get(self.ready["url"] + path, headers=headers, timeout=20, verify=False)

    def parts(self) -> dict[str, dict[str, Any]]:
        """Every part of `/status` by its name."""
        return {part["name"]: part for part in self.get("/status").json()["parts"]}

    def pids(self) -> list[int]:
        """The processes of all parts."""
        return [part["pid"] for part in self.parts().values()]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, dict[str, Any]]:
        """Send a signal; the exit code and the last line."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=120)
        return self.process.returncode, json.loads(out.splitlines()[-1])


def start(folder: Path, *flags: str, **env: str) -> subprocess.Popen[str]:
    """Start `postroad up --json` on a file of its own."""
    data = f"sqlite:///{folder}/data.db"
    command = [*POSTROAD, "up", "--json", "--url", data, "--port", "0", *flags]
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env={**os.environ, **env}
        )


def run(folder: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one that is expected to end by itself."""
    data = f"sqlite:///{folder}/data.db"
    command = [*POSTROAD, "up", "--url", data, *flags]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**os.environ, **env}, timeout=60, check=False
    )


def is_alive(pid: int) -> bool:
    """Whether there is such a process that is not yet dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False
