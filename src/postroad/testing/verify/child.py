"""A client process of a run: `python -m postroad.testing.verify.child`, configured by one line on its stdin."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback

import msgspec

from postroad.errors import TransportError
from postroad.signals import die_with_parent
from postroad.telemetry import configure_logs
from postroad.testing.verify.scenario import START_AGAIN, ChildConfig, Client, find_scenario

_PAUSE_SECONDS = 0.2


def main() -> int:
    """Do the work of one role until the supervisor stops it."""
    # Ctrl-C reaches the whole process group; only the supervisor decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(os.getppid())
    # Unbuffered, so that a thread that still reads holds no lock when the process ends. A supervisor that died before
    # this process began has closed the pipe, and there is no line.
    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  # open as long as the process lives
    config = msgspec.json.decode(orders.readline(), type=ChildConfig)
    threading.Thread(target=lambda: orders.read() or os._exit(1), name="supervisor", daemon=True).start()
    configure_logs("error", "json")
    client = Client(config)
    signal.signal(signal.SIGTERM, lambda *_: client.end())
    scenario = find_scenario(config.scenario)
    if config.load:
        from postroad.testing.verify.workload import use_handlers

        use_handlers(config.load)
    if config.mutant is not None:
        from postroad.testing.mutants import find_mutant

        find_mutant(config.mutant).apply()
    # What is written beside no file of data, such as an audit on AWS, belongs to the run.
    os.chdir(config.place.directory)
    try:
        with config.place.backend() as backend:
            scenario.roles[config.role].work(client, backend)
    except TransportError:
        traceback.print_exc()
        time.sleep(_PAUSE_SECONDS)
        # At once: while an interpreter ends, SIGTERM kills the process.
        os._exit(START_AGAIN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
