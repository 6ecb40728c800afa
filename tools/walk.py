"""Follow one event, one outbox row and one task through the code, and count the files that they visit.

Usage: python tools/walk.py [--files | --full] [event] [row] [task]

Prints one line for each walk. --files lists the files in the order of the first visit, --full every call, indented.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

import postroad
from postroad import Consumer, DomainEvent, Inbox, Outbox, QueueSpec, TaskProducer, TaskWorker
from postroad.outbox import OutboxDispatcher
from postroad.tasks import task as define_task

HOME = str(Path(postroad.__file__).resolve().parent) + "/"


class Call(NamedTuple):
    """A function of Postroad that was entered."""

    depth: int
    file: str
    function: str


class Walk:
    """Record the calls into Postroad made by every thread inside the `with` block."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __enter__(self) -> Walk:
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(HOME) or code.co_name.startswith("<"):
            return
        depth, above = 0, frame.f_back
        while above is not None:
            depth += above.f_code.co_filename.startswith(HOME)
            above = above.f_back
        self.calls.append(Call(depth, code.co_filename.removeprefix(HOME), code.co_qualname))


@postroad.event(name="walk.placed")
class Placed:
    """The event that is followed."""

    n: int


@define_task("walk-task", timeout=30)
def walk_task(input: object, context: object) -> object:
    """Do nothing, as a task."""
    return {}


def follow_event(directory: str) -> list[Call]:
    """Publish an event on a bus and handle it."""
    walk = Walk()
    with postroad.connect(f"sqlite:///{directory}/event.db") as backend, backend.bus("walk", "group") as bus:
        bus.subscribe(Placed, lambda _: None)
        bus.publish(Placed(0))
        bus.receive_once()
        with walk:
            bus.publish(Placed(1))
            bus.receive_once()
    return walk.calls


def follow_row(directory: str) -> list[Call]:
    """Add an event to an outbox, publish it from there and apply it through an inbox."""
    database, walk = f"{directory}/shop.db", Walk()
    with closing(Outbox.sqlite(database)) as outbox, closing(Inbox.sqlite(database)) as inbox:
        outbox.init()
        inbox.init()
        with sqlite3.connect(database) as connection, walk:
            outbox.add(connection, DomainEvent(type="transfers.submitted", key={"id": "tr_1"}, payload={"amount": 25}))
        connection.close()
        with postroad.connect(f"sqlite:///{directory}/row.db") as backend:
            topic = backend.topic("transfers.fifo", fifo=True)
            queue = backend.create_queue(QueueSpec("ledger.fifo", fifo=True))
            topic.subscribe(queue)
            with walk:
                OutboxDispatcher(outbox, topic).drain()
                Consumer(queue, lambda event, connection: None, name="ledger", inbox=inbox).run_once()
    return walk.calls


def follow_task(directory: str) -> list[Call]:
    """Submit a task and run it to its end."""
    walk = Walk()
    with postroad.connect(f"sqlite:///{directory}/task.db") as backend:
        producer, worker = TaskProducer(backend), TaskWorker(backend)
        with walk:
            producer.submit("walk-task", {"a": 1}, request_id="r1")
            worker.run(until_idle=True)
        ended = producer.status("r1")
        assert ended is not None
        # A signal ends the run, too; a task that failed says why.
        assert ended.state == "completed", f"stopped: {worker.was_stopped}, {ended}"
    return walk.calls


WALKS: dict[str, Callable[[str], list[Call]]] = {"event": follow_event, "row": follow_row, "task": follow_task}


def files(calls: list[Call]) -> list[str]:
    """Return the files visited, in the order of the first visit."""
    return list(dict.fromkeys(call.file for call in calls))


def main(arguments: list[str]) -> None:
    for name in [word for word in arguments if not word.startswith("-")] or list(WALKS):
        with tempfile.TemporaryDirectory() as directory:
            calls = WALKS[name](directory)
        functions = {(call.file, call.function) for call in calls}
        print(f"{name}: {len(files(calls))} files, {len(functions)} functions, {len(calls)} calls")
        if "--files" in arguments:
            print(*(f"  {file}" for file in files(calls)), sep="\n")
        if "--full" in arguments:
            print(*("  " * call.depth + f"{call.file}:{call.function}" for call in calls), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
