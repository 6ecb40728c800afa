"""Postroad's side of the rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock, patch

import apsw

import postroad
from benchmarks.frame import Durability, Load, Open, Opened, WrongResult
from benchmarks.workload import move
from postroad import OutgoingMessage, Queue, QueueSpec
from postroad.engine import disk

NAME = "bench"
FILE = "postroad.db"
TRAIL_KEEP = 100_000
_LEVELS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def url(directory: Path) -> str:
    """Where the embedded file of this side lies."""
    return f"sqlite:///{directory / FILE}"


@contextmanager
def open_queue(directory: Path, *, fifo: bool = False, trail_keep: int = TRAIL_KEEP) -> Iterator[Queue]:
    """A fresh queue with the defaults a user gets, but for a visibility no round outlasts."""
    with postroad.connect(url(directory), trail_keep=trail_keep) as backend:
        yield backend.create_queue(QueueSpec(f"{NAME}.fifo" if fifo else NAME, fifo=fifo, visibility=600))


def moving(*, producers: int, consumers: int, send_batch: int, take_batch: int, trail_keep: int = TRAIL_KEEP) -> Open:
    """A side that moves messages with threads of one process."""

    @contextmanager
    def opened(directory: Path, load: Load) -> Iterator[Opened]:
        with open_queue(directory, trail_keep=trail_keep) as queue:
            client = QueueClient(queue, take_batch)

            def run() -> float:
                return move([client] * producers, [client] * consumers, messages=load.messages, batch=send_batch)

            yield Opened(run, lambda: durability(queue, directory))

    return opened


class QueueClient:
    """A queue as the workload sees it. Any number of threads may share it."""

    def __init__(self, queue: Queue, take_batch: int) -> None:
        self._queue = queue
        self._take_batch = take_batch

    def put(self, bodies: Sequence[str]) -> None:
        """Send the bodies as one batch."""
        send(self._queue, [OutgoingMessage(body) for body in bodies])

    def take(self) -> list[str]:
        """Receive up to a batch and ack it."""
        return receive(self._queue, self._take_batch, wait=0.2)


def send(queue: Queue, messages: Sequence[OutgoingMessage]) -> None:
    """Send, and refuse the round when one was not stored."""
    for result in queue.send(messages):
        if not result.ok:
            raise WrongResult(f"a send failed: {result.error}")


def receive(queue: Queue, most: int, *, wait: float = 0.0) -> list[str]:
    """Receive and ack up to `most`, and refuse the round when an ack came too late."""
    deliveries = queue.receive(max_messages=most, wait=wait)
    for result in queue.ack(deliveries) if deliveries else ():
        if not result.ok:
            raise WrongResult(f"an ack failed: {result.error}")
    return [delivery.body.decode() for delivery in deliveries]


def durability(queue: Queue, directory: Path) -> Durability:
    """Read back what the connections of this process say, and whether a send returned only after a sync of its log."""
    fifo = queue.traits.fifo
    probe = OutgoingMessage("0-x", group="probe" if fifo else None, dedup_id=uuid.uuid4().hex if fifo else None)
    with patch.object(disk, "to_disk", Mock(wraps=disk.to_disk)) as syncs:
        send(queue, [probe])
    path = str((directory / FILE).resolve())
    open_now = [connection for connection in apsw.connections() if connection.filename == path]
    # The engine has several: the weakest one is what counts.
    level = min(int(connection.pragma("synchronous")) for connection in open_now)
    journals = {str(connection.pragma("journal_mode")) for connection in open_now}
    receive(queue, 1)
    # A sync by the engine before the send returns is what FULL does inside the commit.
    synchronous = "FULL" if level == 1 and syncs.call_count else _LEVELS[level]
    return Durability(journal="/".join(sorted(journals)), synchronous=synchronous)
