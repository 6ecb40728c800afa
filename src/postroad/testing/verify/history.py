"""The history: each process appends what it did to its own file, one write for each line."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

Outcome = Literal["ok", "fail", "unknown"]


class History:
    """The file of one process. A line is with the kernel before the next operation begins, so a kill loses none.

    Args:
        directory: The directory of all history files.
        process: The name of the process, which nothing else writes under.
    """

    def __init__(self, directory: Path, process: str) -> None:
        self._process = process
        path = directory / f"{process}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, op: str, outcome: Outcome = "ok", **fields: Any) -> None:
        """Append one operation with its outcome and its fields."""
        line = {"t": time.monotonic(), "p": self._process, "op": op, "outcome": outcome, **fields}
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
