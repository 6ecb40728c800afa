"""Dispatchers in processes of their own, which end for sure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.jobs.floor import APP

import postroad
from postroad.jobs import JobDispatcher

ROOT = Path(__file__).parents[2]


@contextmanager
def dispatcher(url: str, tenant: str, *, failpoints: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A dispatcher that looks at jobs until it is ended."""
    environment = {**os.environ, **({"POSTROAD_FAILPOINTS": failpoints} if failpoints else {})}
    command = [sys.executable, "-W", "error", "-m", __name__, url, tenant]
    started = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        yield started
    finally:
        for number in (signal.SIGCONT, signal.SIGKILL):
            started.send_signal(number)
        started.wait()


def main(url: str, tenant: str) -> None:
    """Handle wake-ups and look at open jobs, for ever."""
    with postroad.connect(url) as backend:
        looking = JobDispatcher(backend, tenant_id=tenant, app=APP)
        while True:
            looking.run_once(wait=0.1)
            looking.reconcile()


if __name__ == "__main__":
    main(*sys.argv[1:])
