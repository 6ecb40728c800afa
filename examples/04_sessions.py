"""Two processes keep one plan: what either of them broadcasts, both reduce, once each.

Run it: python examples/04_sessions.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace

import postroad
from postroad.sessions import Session, reducer


@postroad.event(name="examples.add-step")
class AddStep:
    step: str


@dataclass(frozen=True)
class Plan:
    steps: tuple[str, ...] = ()

    @reducer(on=AddStep)
    def add_step(self, event: AddStep) -> Plan:
        return replace(self, steps=(*self.steps, event.step))


def take_part(url: str, *steps: str, other: bool = False) -> None:
    """Follow the plan, add steps to it, and go when it has three."""
    complete = threading.Event()
    with postroad.connect(url) as backend, backend.bus("plan") as bus, Session(bus=bus) as session:
        session.install(Plan, initial=Plan)
        session.observe(Plan, lambda old, new: complete.set() if len(new[-1].steps) == 3 else None)
        bus.start_receiver()
        if other:
            print("the other process listens", flush=True)
        else:
            process = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            print(process.stdout.readline(), end="")
        for step in steps:
            session.broadcast(AddStep(step)).raise_if_errors()
        assert complete.wait(5)
        print("the other has" if other else "this one has ", sorted(session[Plan].all()[-1].steps), flush=True)
        if not other:
            print(process.communicate()[0], end="")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take_part(sys.argv[1], "review", other=True)
    else:
        with tempfile.TemporaryDirectory() as directory:
            take_part(f"sqlite:///{directory}/postroad.db", "research", "write")
