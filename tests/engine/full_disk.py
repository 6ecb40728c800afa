"""What a program does on a disk of a given size until it is full, and what it can do then; run as a script.

It mounts a file system of its own, which is gone when the process ends: run it under `unshare --mount`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import postroad
from postroad import Backend, OutgoingMessage, Queue, QueueSpec
from postroad.agents import AgentEvent
from postroad.errors import StorageFull
from postroad.queues import purge
from postroad.streams import Record

_DRAIN = "import sys; from full_disk import open_queue, drain; print(drain(open_queue(sys.argv[1])[1]))"
_FILL = """
import sys
from full_disk import fill, open_queue
backend, queue = open_queue(sys.argv[1])
print(fill(queue), flush=True)
input()
"""
_HERE = Path(__file__).parent


def open_queue(disk: str) -> tuple[Backend, Queue]:
    """Open the queue as a program does at its start."""
    backend = postroad.connect(f"sqlite:///{disk}/s.db")
    backend.create_queue(QueueSpec("dead"))
    return backend, backend.create_queue(QueueSpec("q", visibility=3_600, dead_letter="dead"))


def fill(queue: Queue, *, size: int = 2_000, limit: int | None = None) -> int:
    """Send until the disk is full; how many were accepted."""
    accepted = 0
    try:
        while limit is None or accepted < limit:
            accepted += sum(sent.ok for sent in queue.send([OutgoingMessage("x" * size) for _ in range(10)]))
    except StorageFull:
        pass
    return accepted


def drain(queue: Queue) -> int:
    """Receive and ack everything; no call may fail."""
    acked = 0
    while deliveries := queue.receive(max_messages=50):
        acked += sum(result.ok for result in queue.ack(deliveries))
    return acked


def take_what_is_left(disk: str) -> None:
    """Let another program use up the disk to the last byte."""
    with Path(disk, "other").open("ab", buffering=0) as other:
        for size in (65_536, 4_096, 1):
            try:
                while True:
                    other.write(bytes(size))
            except OSError:
                continue


def same_process(disk: str) -> None:
    _, queue = open_queue(disk)
    accepted = fill(queue)
    take_what_is_left(disk)

    assert drain(queue) == accepted > 100
    # What was drained made room inside the file.
    assert fill(queue, limit=100) == 100


def new_process_after_a_clean_end(disk: str) -> None:
    backend, queue = open_queue(disk)
    accepted = fill(queue)
    backend.close()
    take_what_is_left(disk)

    assert int(_child(_DRAIN, disk)) == accepted > 100


def new_process_after_a_kill(disk: str) -> None:
    filler = subprocess.Popen(
        [sys.executable, "-c", _FILL, disk], cwd=_HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert filler.stdout is not None
    accepted = int(filler.stdout.readline())
    filler.kill()
    filler.wait()
    take_what_is_left(disk)

    assert int(_child(_DRAIN, disk)) == accepted > 100


def two_processes(disk: str) -> None:
    _, queue = open_queue(disk)
    accepted = fill(queue)
    take_what_is_left(disk)
    mine = sum(result.ok for result in queue.ack(queue.receive(max_messages=50)))

    theirs = int(_child(_DRAIN, disk))

    assert mine + theirs == accepted
    assert drain(queue) == 0


def another_program_fills_the_disk(disk: str) -> None:
    _, queue = open_queue(disk)
    accepted = fill(queue, limit=400)
    take_what_is_left(disk)

    # Room that the log gives back is used first.
    accepted += fill(queue)
    assert drain(queue) == accepted >= 400
    Path(disk, "other").unlink()
    assert fill(queue, limit=400) == 400


def leases_leave_room_for_acks(disk: str) -> None:
    _, queue = open_queue(disk)
    accepted = fill(queue, size=100)
    take_what_is_left(disk)
    held = []
    try:
        while deliveries := queue.receive(max_messages=1_000):
            held += deliveries
    except StorageFull:
        pass
    random.Random(0).shuffle(held)

    acked = sum(queue.ack([delivery])[0].ok for delivery in held)

    assert acked == len(held) > 1_000
    assert acked + drain(queue) == accepted


def dead_letters_leave_room_for_acks(disk: str) -> None:
    backend, queue = open_queue(disk)
    accepted = fill(queue)
    take_what_is_left(disk)
    rejected = 0
    try:
        while deliveries := queue.receive(max_messages=10):
            rejected += sum(result.ok for result in queue.reject(deliveries, reason="no"))
    except StorageFull:
        acked = sum(result.ok for result in queue.ack(deliveries))

    assert rejected > 50
    assert drain(queue) == accepted - rejected - acked
    assert drain(backend.queue("dead")) == rejected


def purge_and_delete(disk: str) -> None:
    backend, queue = open_queue(disk)
    accepted = fill(queue, size=100)
    take_what_is_left(disk)

    assert purge(queue) == accepted
    assert fill(queue, size=100, limit=10_000) == 10_000
    backend.delete_queue("q")
    assert backend.queues() == ["dead"]


def compact_a_drained_file(disk: str) -> None:
    backend, queue = open_queue(disk)
    accepted = fill(queue)
    take_what_is_left(disk)
    assert drain(queue) == accepted

    done = backend.compact()

    assert done.given_back_bytes > done.before_bytes // 2
    assert fill(queue, limit=100) == 100


def items_topics_streams_and_agents(disk: str) -> None:
    backend, queue = open_queue(disk)
    agents, items, stream = backend.agents(), backend.items(), backend.stream("s", shards=1)
    for agent in ("ann", "bob"):
        agents.register(agent)
    agents.subscribe_many([("bob", "ann")])
    agents.publish([AgentEvent("ann", "counted", {"n": n}) for n in range(4)])
    agents.runner(worker="w").run_once()
    backend.topic("t").subscribe(queue)
    items.put("t/k", b"v")
    (put,) = stream.put([Record("k", b"r")])
    fill(queue)
    take_what_is_left(disk)

    lane = agents.queue("bob")
    acked, rejected, *released = lane.receive()
    assert lane.ack([acked])[0].ok
    assert lane.reject([rejected], reason="no")[0].ok
    assert lane.release(released)[0].ok
    agents.delete("ann")
    assert items.delete("t/k").ok
    assert put.shard is not None
    assert put.sequence is not None
    assert stream.checkpoint("c", put.shard, put.sequence)
    assert backend.topic("t").unsubscribe(queue)
    backend.topic("t").subscribe(queue)


def _child(program: str, disk: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program, disk], cwd=_HERE, check=True, capture_output=True, text=True
    ).stdout


SCENES: dict[str, Callable[[str], None]] = {
    scene.__name__: scene
    for scene in (
        same_process,
        new_process_after_a_clean_end,
        new_process_after_a_kill,
        two_processes,
        another_program_fills_the_disk,
        leases_leave_room_for_acks,
        dead_letters_leave_room_for_acks,
        purge_and_delete,
        compact_a_drained_file,
        items_topics_streams_and_agents,
    )
}

if __name__ == "__main__":
    scene, megabytes, mount_point = sys.argv[1:]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", mount_point], check=True)
    SCENES[scene](mount_point)
    os._exit(0)
