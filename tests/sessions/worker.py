"""A worker of a main loop in a process of its own: python -m tests.sessions.worker URL SEEN [stuck]

It notes each request it begins in the file SEEN and ends with its standard input.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.sessions.reviews import Reviewer, ReviewLoop, ReviewResult

import postroad
from postroad.bus import BusConfig


def main(url: str, seen: str, *manner: str) -> None:
    """Serve until nobody writes to us any more."""

    def work(file: str) -> object:
        with Path(seen).open("a") as notes:
            notes.write(f"{os.getpid()} {file}\n")
        while "stuck" in manner:
            time.sleep(60)
        return ReviewResult([f"{file} reviewed by {os.getpid()}"])

    config = BusConfig(visibility_timeout_seconds=1, wait_time_seconds=1)
    with postroad.connect(url) as backend, ReviewLoop.serve(backend, adapter=Reviewer(work), bus_config=config):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
