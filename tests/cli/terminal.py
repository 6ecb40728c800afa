"""Running `postroad` in a test: in this process for the answer, as a program for what only a program can show."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PROGRAM = (sys.executable, "-m", "postroad")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        """The problem object on stderr."""
        return json.loads(self.err)


def hear_ctrl_c() -> None:
    """Let a program that is about to start hear SIGINT, which what runs in the background of a shell does not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


Postroad = Callable[..., Outcome]


def program(*args: str, env: dict[str, str] | None = None, stdin: str | None = "") -> subprocess.CompletedProcess[str]:
    """Run the real program in the working directory."""
    return subprocess.run(
        [*PROGRAM, *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
    )


def on_a_terminal(
    *args: str, env: dict[str, str] | None = None, answer: str = "", columns: int = 80
) -> tuple[int, str]:
    """Run the program on a pseudo-terminal; its exit code and all it wrote."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **(env or {})},
    )
    os.close(theirs)
    os.write(terminal, answer.encode())
    written = b""
    try:
        while chunk := os.read(terminal, 65_536):
            written += chunk
    except OSError:
        pass  # the other side was closed: that is how a pseudo-terminal ends
    os.close(terminal)
    return process.wait(timeout=120), written.decode()
