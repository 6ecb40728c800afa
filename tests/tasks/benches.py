"""A producer and workers for tests, with short patience."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import eventually

from postroad import Backend
from postroad.journal import JournalEvent
from postroad.journal.states import TaskState
from postroad.tasks import DeadLetterHandler, TaskProducer, TaskWorker

CHORES = ("tests.tasks.chores",)
TENANT, APP = "acme", "shop"
QUICK: dict[str, Any] = {"retry_base": 0.01, "retry_cap": 0.05, "kill_grace": 0.3, "wait": 0.05}


class Bench:
    """Everything of one tenant on one backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.producer = TaskProducer(backend, tenant_id=TENANT, app=APP)

    def worker(self, **options: Any) -> TaskWorker:
        return TaskWorker(self.backend, **{"imports": CHORES, "tenant_id": TENANT, "app": APP, **QUICK, **options})

    def work(self, **options: Any) -> None:
        """Let a worker run what there is."""
        self.worker(**options).run(until_idle=True)

    def bury(self) -> int:
        """Let the dead letters be handled."""
        return DeadLetterHandler(self.backend, tenant_id=TENANT, app=APP).run_once()

    def run_one(self, name: str, input: dict[str, Any] | None = None, **options: Any) -> TaskState:
        """Submit one task, let a worker run it to its end, and return its state."""
        handle = self.producer.submit(name, input)
        self.work(**options)
        self.bury()
        return self.state(handle.request_id)

    def ended(self, name: str, input: dict[str, Any] | None = None, **options: Any) -> TaskState:
        """Submit one task to a worker that runs already, and return its state."""
        handle = self.producer.submit(name, input, **options)
        eventually(lambda: self.state(handle.request_id).state not in ("pending", "processing") or self.bury())
        return self.state(handle.request_id)

    def state(self, request_id: str) -> TaskState:
        state = self.producer.status(request_id)
        assert state is not None
        return state

    def last(self, request_id: str, event_type: str) -> JournalEvent:
        """The last event of this type."""
        return [event for event in self.producer.history(request_id) if event.event_type == event_type][-1]

    def types(self, request_id: str) -> list[str]:
        """What happened to a task, in order."""
        return [event.event_type for event in self.producer.history(request_id)]


@contextmanager
def working(bench: Bench, **options: Any) -> Iterator[Bench]:
    """Let a worker run whatever is submitted meanwhile."""
    worker = bench.worker(**options)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        yield bench
    finally:
        worker.stop()
        worker.stop()
        running.join()


def lines(path: Path) -> list[str]:
    """The lines that tasks have noted so far."""
    return path.read_text().splitlines() if path.exists() else []


def is_alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def parent_of(pid: int) -> int:
    """The process that started this one."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def ours(pid: int) -> list[int]:
    """The processes that stem from this one, zombies not counted."""
    from postroad.tasks.processes import descendants

    return [each for each in descendants(pid) if is_alive(each) and each != os.getpid()]
