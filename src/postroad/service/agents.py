"""Agents: what moves their events from the stream into their lanes."""

from __future__ import annotations

import threading

from postroad.wiring.backend import Backend


def move_events(backend: Backend, stop: threading.Event) -> None:
    """Run until told to stop; where functions of AWS do the work there is nothing to run."""
    agents = backend.agents()
    if agents.runs_here:
        agents.runner(worker="postroad-up").run(stop)
    else:
        stop.wait()
