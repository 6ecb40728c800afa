"""A session in a process of its own: python -m tests.sessions.follower URL [fifo]

It prints its plan whenever it changes and ends with its standard input; each line it reads is broadcast as a step.
"""

from __future__ import annotations

import sys

from tests.sessions.plans import AddStep, Plan

import postroad
from postroad.bus import BusConfig
from postroad.sessions import Session


def main(url: str, *manner: str) -> None:
    """Follow the plan until nobody writes to us any more."""
    fifo = "fifo" in manner
    config = BusConfig(wait_time_seconds=1, message_group_id="plan" if fifo else None)
    with (
        postroad.connect(url) as backend,
        backend.bus("agent-state", fifo=fifo, local=not fifo, config=config) as bus,
        Session(bus=bus) as session,
    ):
        session.install(Plan, initial=Plan)
        session.observe(Plan, lambda old, new: print(*new[-1].steps, flush=True))
        bus.start_receiver()
        print("ready", flush=True)
        for line in sys.stdin:
            session.broadcast(AddStep(line.strip())).raise_if_errors()


if __name__ == "__main__":
    main(*sys.argv[1:])
