"""Receivers in processes of their own: python -m tests.bus.receiver_processes URL TOPIC GROUP FIFO FILE

All are forked from one process that has imported everything, so that a kill is soon made up for. It obeys the lines
`start NUMBER`, `wait PID` and `kill PID`, and answers each with a number: a process that receives, or how one ended.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.bus.vocabulary import QUICK, Placed, Stepped

import postroad
from postroad.bus import current_context

# What a bus imports only when it is used: each process that is forked would import it anew.
USED = ("apsw", "opentelemetry.trace", "prometheus_client", "structlog")


def main(*arguments: str) -> None:
    """Obey until nobody writes to us any more, and leave no process behind."""
    alive: set[int] = set()
    for name in USED:
        importlib.import_module(name)
    try:
        for line in sys.stdin:
            verb, _, operand = line.strip().partition(" ")
            print(obey(verb, operand, alive, arguments), flush=True)
    finally:
        for process in alive:
            end(process, kill=True)


def obey(verb: str, operand: str, alive: set[int], arguments: Sequence[str]) -> int:
    """The answer to one line."""
    if verb == "start":
        alive.add(process := start(operand, *arguments))
        return process
    alive.discard(int(operand))
    return end(int(operand), kill=verb == "kill")


def start(deadly: str, *arguments: str) -> int:
    """A new process, from the moment it receives."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:
            receive(writing, deadly, *arguments)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    return process


def end(process: int, *, kill: bool) -> int:
    """How the process ended."""
    if kill:
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def receive(ready: int, deadly: str, url: str, topic: str, group: str, fifo: str, handled: str) -> None:
    """Write down every event with the count of its receives, and die of the deadly number the first time."""
    log = os.open(Path(handled), os.O_WRONLY | os.O_APPEND)
    config = replace(QUICK, visibility_timeout_seconds=1, max_receives=500, wait_time_seconds=20)
    bus = postroad.connect(url).bus(topic, group or None, fifo=fifo == "fifo", config=config)

    def handle(event: Placed | Stepped) -> None:
        context = current_context()
        count = 0 if context is None else context.receive_count
        os.write(log, f"{getattr(event, 'session_id', '')} {event.number} {count}\n".encode())
        if str(event.number) == deadly and count == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    bus.subscribe(Placed, handle)
    bus.subscribe(Stepped, handle)
    bus.start_receiver()
    os.write(ready, b"!")
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
