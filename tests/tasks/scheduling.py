"""Schedulers in processes of their own, with a task that is due every second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from tests.tasks.benches import APP, TENANT

import postroad
from postroad.tasks import Scheduler, TaskContext, TaskRegistry
from postroad.tasks.threads import RoleThreads

ROOT = Path(__file__).parents[2]
TASKS = TaskRegistry()


def beat(input: dict[str, object], ctx: TaskContext) -> None:
    """Do nothing."""


TASKS.register(beat, every="1s", catch_up="all")


@contextmanager
def scheduler(url: str, *, failpoints: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A process with the role `scheduler`; it is gone afterwards."""
    environment = {**os.environ, **({"POSTROAD_FAILPOINTS": failpoints} if failpoints else {})}
    command = [sys.executable, "-W", "error", "-m", __name__, url]
    started = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGKILL)
        started.wait()


def main(url: str) -> None:
    """Run the role until killed."""
    with postroad.connect(url) as backend:
        role = Scheduler(backend, registry=TASKS, tenant_id=TENANT, app=APP).role()
        with RoleThreads([role]):
            Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
