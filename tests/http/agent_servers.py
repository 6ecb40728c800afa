"""A server of agents in a process of its own, which can be killed and started again on the same port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
from tests.waiting import eventually

ADMIN = "admin-" + "x" * 40


class KillableServer:
    """`postroad up` on one file and one port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = f"sqlite:///{folder}/data.db"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "postroad", "up", "--json", "--url", self.data, "--port", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, "POSTROAD_TOKEN": ADMIN},
                start_new_session=True,
            )
        eventually(self.is_ready, every=0.05)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Kill the whole process group at once."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(120)
            self.process = None
