"""The program that is recorded: two writers that send, receive and ack, and a third one that only copies the log.

It runs in a process of its own: `python -m postroad.testing.powerloss.writer FOLDER RECORDING SYNCHRONOUS SEED`.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, cast

import msgspec

from postroad.engine import Engine, disk
from postroad.queues import OutgoingMessage, OverflowingQueue, QueueSpec
from postroad.testing.powerloss.recording import Promise, Recording, Synchronous, recorded
from postroad.wiring import connect

FILE: Final = "p.db"
QUEUE: Final = "jobs"
ROUNDS: Final = 3
"""How often everything is closed and opened again, so that the log is removed and begins anew."""
WRITERS: Final = 2
MESSAGES: Final = 40
"""How many messages each writer sends in each round."""
BLOB_ABOVE: Final = 4_096
_LARGEST: Final = 750
_BLOB: Final = 5_000
_BLOB_EVERY: Final = 16
_TAKE_EVERY: Final = 3
_CHECKPOINT_PAGES: Final = 60
_PAUSE_SECONDS: Final = 0.005


@functools.cache
def body(seed: int, number: int) -> bytes:
    """Return the body of a message; the numbers of one seed all have bodies of their own."""
    chance = random.Random(f"{seed} {number}")
    size = _BLOB if number % _BLOB_EVERY == 0 else chance.randint(1, _LARGEST)
    return f"{number} {chance.randbytes(size).hex()}".encode()


def run(folder: Path, recording: Recording, seed: int) -> None:
    """Do all rounds and record what each writer was told."""
    setattr(disk, "CHECKPOINT_PAGES", _CHECKPOINT_PAGES)  # noqa: B010 - a constant of the engine
    for round_ in range(ROUNDS):
        done = threading.Event()
        with ThreadPoolExecutor(WRITERS + 1) as threads:
            copier = threads.submit(_copy_log, folder / FILE, done)
            firsts = range(round_ * WRITERS * MESSAGES, (round_ + 1) * WRITERS * MESSAGES, MESSAGES)
            numbers = [range(first, first + MESSAGES) for first in firsts]
            writers = [threads.submit(_write, folder / FILE, recording, seed, each) for each in numbers]
            try:
                for writer in writers:
                    writer.result()
            finally:
                done.set()
            copier.result()


def _write(path: Path, recording: Recording, seed: int, numbers: range) -> None:
    with connect(f"sqlite:///{path}") as backend:
        blobs = backend.blobs()
        assert blobs is not None
        inner = backend.ports.queues.create_queue(QueueSpec(QUEUE, visibility=600))
        queue = OverflowingQueue(inner, blobs, limit=BLOB_ABOVE)
        for number in numbers:
            (sent,) = queue.send([OutgoingMessage(body(seed, number))])
            assert sent.ok, sent
            recording.add(Promise(f"sent {number}"))
            if number % _TAKE_EVERY == 0:
                deliveries = queue.receive(max_messages=1)
                for delivery in deliveries:
                    # From now on nobody may count on it: a cut may undo the ack, or not.
                    recording.add(Promise(f"taken {delivery.body.split(b' ', 1)[0].decode()}"))
                queue.ack(deliveries)


def _copy_log(path: Path, done: threading.Event) -> None:
    engine = Engine(path)
    try:
        while not done.wait(_PAUSE_SECONDS):
            engine.alone(lambda connection: None)
    finally:
        engine.close()


def main(folder: str, out: str, synchronous: str, seed: str) -> None:
    with recorded(Path(folder), cast(Synchronous, synchronous)) as recording:
        run(Path(folder), recording, int(seed))
    Path(out).write_bytes(msgspec.msgpack.encode(recording.steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
