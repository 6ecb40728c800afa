"""The parts that the child `runners` runs, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from postroad.settings import Settings
from postroad.up.agents import move_events
from postroad.up.buses import run_buses
from postroad.up.housekeeping import keep_house
from postroad.up.notifications import send_notifications
from postroad.up.tasks import run_tasks
from postroad.wiring.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What a part works with. It returns soon after `stop` is set."""

    backend: Backend
    settings: Settings
    stop: threading.Event


@dataclass(frozen=True, slots=True)
class RunnerPart:
    """A part: its name, and what it does until it is told to stop."""

    name: str
    run: Callable[[Workplace], None]


RUNNER_PARTS = (
    RunnerPart("housekeeping", lambda at: keep_house(at.backend, at.settings, at.stop)),
    RunnerPart("agents", lambda at: move_events(at.backend, at.stop, functions=at.settings.agents_functions)),
    RunnerPart("notifications", lambda at: send_notifications(at.backend, at.stop)),
    RunnerPart("bus", lambda at: run_buses(at.backend, at.settings, at.stop)),
    RunnerPart("worker", lambda at: run_tasks(at.backend, at.settings, at.stop)),
)
