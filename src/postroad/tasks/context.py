"""What a task knows about its run besides its input."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from postroad.errors import InvalidTask

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """One attempt of one run. `token` grows with every attempt anywhere: use it to fence writes to other systems."""

    request_id: str
    name: str
    tenant_id: str
    run: int
    attempt: int
    token: int
    deadline: datetime
    job_id: str | None = None
    task_id: str | None = None
    dependency_outputs: Mapping[str, Any] = field(default_factory=dict)
    tell: Tell = field(default=lambda activity: None, repr=False)
    counts: dict[str, int] = field(default_factory=dict, repr=False)

    def activity(self, type: str, step_name: str) -> None:
        """Say what is being done; the next heartbeat carries it."""
        self.tell({"type": str(type)[:100], "stepName": str(step_name)[:200], "timestamp": int(time.time())})

    def usage(self, **counts: Any) -> None:
        """Add to what the task used; the sums are recorded when it completes."""
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise InvalidTask(f"usage.{name}: {count!r} is not a whole number from 0 on", field=f"usage.{name}")
            self.counts[name] = self.counts.get(name, 0) + count
