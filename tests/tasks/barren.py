"""A task whose processes end as soon as they are forked, as on a machine that is out of them."""

from __future__ import annotations

import os
from typing import Any

from postroad.tasks import TaskContext, task


@task("never-born")
def never_born(input: dict[str, Any], ctx: TaskContext) -> Any:
    return None


os.register_at_fork(after_in_child=lambda: os._exit(1))
