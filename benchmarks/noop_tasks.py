"""The task that every worker runs: it does nothing and tells who did it."""

from __future__ import annotations

import os
from typing import Any

from postroad.tasks import TaskContext, task


@task("noop")
def noop(input: dict[str, Any], ctx: TaskContext) -> int:
    return os.getpid()
