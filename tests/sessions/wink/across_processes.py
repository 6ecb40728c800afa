"""Telemetry of weakincentives from one process to a Session in another: across_processes.py URL; exits 0 if all holds.

With `receive` behind the URL it is the other process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import weakincentives.runtime.events as events
from tests.sessions.wink.values import SESSION, TELEMETRY, UNREGISTERED, Finding, registry
from weakincentives.runtime.session import Session

import postroad
from postroad.bus import BusConfig, current_context

QUICK = BusConfig(wait_time_seconds=1)
TYPES = (events.PromptRendered, events.ToolInvoked, events.PromptExecuted)


def publish(url: str) -> None:
    """Send each event once, and let the other process judge."""
    command = [sys.executable, "-W", "error", __file__, url, "receive"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "ready"
        with postroad.connect(url, registry=registry()) as backend, backend.bus("telemetry", config=QUICK) as bus:
            for event in (*TELEMETRY, UNREGISTERED):
                bus.publish(event).raise_if_errors()
        assert other.wait(120) == 0


def receive(url: str) -> None:
    """Hear all events and compare them with what was sent."""
    names: list[str] = []
    with postroad.connect(url, registry=registry()) as backend, backend.bus("telemetry", config=QUICK) as bus:
        session = Session(bus=bus, session_id=SESSION)
        for cls in TYPES:
            bus.subscribe(cls, lambda event: names.append(name_of_handled()))
        bus.start_receiver()
        print("ready", flush=True)
        deadline = time.monotonic() + 20
        while len(names) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)

    check(session, names)


def name_of_handled() -> str:
    """The name that the event being handled has on the wire."""
    context = current_context()
    assert context is not None
    return context.envelope.event_type


def check(session: Any, names: list[str]) -> None:
    """Everything arrived as it was sent."""
    rendered, tool, executed = TELEMETRY
    assert session[events.PromptRendered].all() == (rendered,)
    assert session[events.PromptExecuted].all() == (executed,)
    assert tool in session[events.ToolInvoked].all()
    assert sorted(session[Finding].all(), key=str) == [Finding("a"), Finding("b"), Finding("tool")]
    (strange,) = (event for event in session[events.ToolInvoked].all() if event.event_id == UNREGISTERED.event_id)
    assert strange.params == {"__type__": "tests.sessions.wink.values:Stranger", "text": "p"}
    assert sorted(set(names)) == sorted(f"weakincentives.runtime.events:{cls.__name__}" for cls in TYPES)


if __name__ == "__main__":
    receive(sys.argv[1]) if sys.argv[2:] == ["receive"] else publish(sys.argv[1])
