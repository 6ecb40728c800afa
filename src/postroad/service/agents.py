"""Agents: what moves their events from the stream into their lanes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from postroad.wiring.backend import Backend


def move_events(backend: Backend, stop: threading.Event) -> None:
    """Run until told to stop; where functions of AWS do the work there is nothing to run."""
    agents = backend.agents()
    if agents.runs_here:
        agents.runner(worker="postroad-up").run(stop)
    else:
        stop.wait()


@contextmanager
def moved_here(backend: Backend) -> Iterator[None]:
    """Move events in this process while the block runs, where no other process sees them."""
    if backend.agents().is_shared:
        yield
        return
    stop = threading.Event()
    moving = threading.Thread(target=move_events, args=(backend, stop), name="agents")
    moving.start()
    try:
        yield
    finally:
        stop.set()
        moving.join()
