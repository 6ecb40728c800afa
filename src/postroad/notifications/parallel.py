"""The same work on many things, a few at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

Thing = TypeVar("Thing")
Done = TypeVar("Done")


def done_in_parallel(
    things: Sequence[Thing], work: Callable[[Thing], Done], *, threads: int
) -> Iterator[list[Done]]:  # fmt: skip
    """What the work gave, in groups, as soon as there is something; the work must not raise."""
    if len(things) == 1 or threads == 1:
        yield from ([work(thing)] for thing in things)
        return
    waiting: SimpleQueue[Thing] = SimpleQueue()
    done: SimpleQueue[Done] = SimpleQueue()
    for thing in things:
        waiting.put(thing)
    for _ in range(min(threads, len(things))):
        threading.Thread(target=_run, args=(waiting, done, work), name="postroad-push", daemon=True).start()
    left = len(things)
    while left:
        group = [done.get(), *_there(done)]
        left -= len(group)
        yield group


def _run(waiting: SimpleQueue[Thing], done: SimpleQueue[Done], work: Callable[[Thing], Done]) -> None:
    for thing in _there(waiting):
        done.put(work(thing))


def _there(queue: SimpleQueue[Thing]) -> Iterator[Thing]:
    try:
        while True:
            yield queue.get_nowait()
    except Empty:
        return
