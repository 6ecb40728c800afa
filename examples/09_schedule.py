"""A task that runs by itself each night, on a clock that is put forward; what was missed is caught up on."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import postroad
from postroad.tasks import Scheduler, Schedules, TaskContext, TaskProducer, TaskWorker, task
from postroad.testing import FakeClock


@task(schedule="0 3 * * *", tz="Europe/Athens", catch_up="all")
def nightly(input: dict[str, Any], ctx: TaskContext) -> str:
    """Write the report of a day."""
    return f"report by {ctx.request_id}"


def main() -> None:
    """Let three days pass for the scheduler, run what was due, and tell what happened."""
    clock = FakeClock(datetime(2026, 11, 15, 12, tzinfo=UTC))
    with tempfile.TemporaryDirectory() as folder, postroad.connect(f"sqlite:///{Path(folder) / 'shop.db'}") as backend:
        # `postroad worker` and `postroad up` do this ten times a second, with the clock of the machine.
        scheduler = Scheduler(backend, clock=clock)
        print(f"due at first: {scheduler.tick()}")
        clock.advance(3 * 86_400)
        print(f"due after three days: {scheduler.tick()}; asked again: {scheduler.tick()}")

        TaskWorker(backend).run(until_idle=True)

        producer = TaskProducer(backend)
        for day in (16, 17, 18):
            # 03:00 in Athens is 01:00 in UTC.
            state = producer.status(f"schedule-nightly-202611{day}T010000Z")
            assert state is not None
            print(f"{state.state}: {state.output}")
        (shown,) = Schedules(backend).list_all()
        print(f"{shown.name} ({shown.schedule}, {shown.tz}) runs next at {shown.next_at}")


# Children import this file to find the task, so that what starts it stands behind this line.
if __name__ == "__main__":
    main()
