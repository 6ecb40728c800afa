"""Agents: what moves their events from the stream into their lanes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from postroad.wiring.backend import Backend

_LOOK_AGAIN = 30.0


def move_events(backend: Backend, stop: threading.Event, *, functions: bool = False) -> None:
    """Run until told to stop. `functions` of AWS may do the work instead: then see that they are there.

    Where nobody set agents up there is nothing to do until somebody does. `ConfigurationError` names what is missing of
    them.
    """
    agents = backend.agents()
    here = agents.runs_here or not functions
    while not stop.is_set():
        if backend.check_agents("runner" if here else "functions") and here:
            # All that ever run on one file share a name, so that a restart waits for no lease; elsewhere many may run.
            runner = agents.runner(worker="postroad-up" if agents.runs_here else None)
            try:
                runner.run(stop)
            finally:
                runner.close()
        else:
            stop.wait(_LOOK_AGAIN)


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
