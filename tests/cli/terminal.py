"""Running `postroad` in a test: in this process for the answer, as a program for what only a program can show."""

from __future__ import annotations

import json
import os
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
