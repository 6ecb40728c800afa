"""Workers in processes of their own: started, signalled and ended for sure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tasks.benches import APP, CHORES, QUICK, TENANT

import postroad
from postroad.tasks import TaskWorker

ROOT = Path(__file__).parents[2]


@contextmanager
def worker(url: str, *, failpoints: str = "", **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A worker; whatever the test did to it, it and all that stems from it are gone afterwards."""
    command = [sys.executable, "-W", "error", "-m", __name__, url, json.dumps(options)]
    environment = {**os.environ, **({"POSTROAD_FAILPOINTS": failpoints} if failpoints else {})}
    started = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        yield started
    finally:
        for number in (signal.SIGCONT, signal.SIGKILL):
            started.send_signal(number)
        started.wait()


def main(url: str, given: str) -> None:
    """Work until stopped."""
    options = json.loads(given)
    with postroad.connect(url) as backend:
        TaskWorker(backend, imports=CHORES, tenant_id=TENANT, app=APP, **{**QUICK, **options}).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
