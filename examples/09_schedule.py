"""A task that runs at three each night in Athens: once for each night, however many workers there are.

Run it: python examples/09_schedule.py
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime

import postroad
from postroad.tasks import Scheduler, Schedules, TaskProducer, TaskWorker, task
from postroad.testing import FakeClock


@task("nightly-report", schedule="0 3 * * *", tz="Europe/Athens")
def nightly_report() -> str:
    return "the report of yesterday"


def main(url: str) -> None:
    """Let four days pass for two workers, and tell which runs there were."""
    # The nights around the end of summer time pass at once on this clock; leave it out in a program.
    clock = FakeClock(datetime(2026, 10, 23, 12, tzinfo=UTC))
    with postroad.connect(url, clock=clock) as backend:
        # The role `scheduler` of `postroad worker` and `postroad up` does this, in as many processes as you like.
        schedulers = [Scheduler(backend), Scheduler(backend)]
        for _ in range(4):
            sent = [scheduler.tick() for scheduler in schedulers]
            print(f"{clock.now():%d %B}: the first worker sends {sent[0]}, the second {sent[1]}")
            TaskWorker(backend).run(until_idle=True)
            clock.advance(86_400)

        # 03:00 in Athens is midnight in UTC in summer, and 01:00 after it.
        for night in ("20261024T000000Z", "20261025T000000Z", "20261026T010000Z"):
            state = TaskProducer(backend).status(f"schedule-nightly-report-{night}")
            print(night, state and state.state)
        [schedule] = Schedules(backend).list_all()
        print(f"{schedule.name} ({schedule.schedule}, {schedule.tz}) runs next at {schedule.next_at}")


# Children import this file to find the task, so what starts it stands behind this line.
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"sqlite:///{directory}/shop.db")
