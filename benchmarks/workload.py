"""Moving messages through a queue with threads, and checking that all arrived once."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.frame import WrongResult

PADDING = "x" * 100
PATIENCE_SECONDS = 120.0
_numbers = itertools.count()


class Client(Protocol):
    """One thread's way to a queue, ours or a peer's."""

    def put(self, bodies: Sequence[str]) -> None:
        """Store the bodies durably."""
        ...

    def take(self) -> list[str]:
        """Receive and settle some; empty when there is nothing yet."""
        ...


def bodies(count: int) -> list[str]:
    """Bodies of which no two of the whole run are alike."""
    return [f"{next(_numbers):012d}-{PADDING}" for _ in range(count)]


def check_once(sent: Iterable[str], received: Iterable[str]) -> None:
    """Refuse a round that lost or doubled something."""
    wanted, got = Counter(sent), Counter(received)
    if wanted != got:
        raise WrongResult(f"{(wanted - got).total()} lost, {(got - wanted).total()} doubled or foreign")


@dataclass(slots=True)
class _Run:
    """What the threads of one round share."""

    wanted: int
    deadline: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    received: list[str] = field(default_factory=list)
    ended_at: float = 0.0
    failed: bool = False

    def over(self) -> bool:
        return self.failed or len(self.received) >= self.wanted or time.perf_counter() > self.deadline

    def settle(self, taken: list[str]) -> None:
        with self.lock:
            self.received.extend(taken)
            self.ended_at = time.perf_counter()


def move(producers: Sequence[Client], consumers: Sequence[Client], *, messages: int, batch: int) -> float:
    """Send, receive and settle that many messages with a thread per client; messages per second, once checked."""
    sent = bodies(messages)
    shares = [sent[number :: len(producers)] for number in range(len(producers))]
    run = _Run(wanted=messages, deadline=time.perf_counter() + PATIENCE_SECONDS)
    start = threading.Barrier(len(producers) + len(consumers) + 1)
    with ThreadPoolExecutor(len(producers) + len(consumers)) as pool:
        futures = [
            pool.submit(_produce, run, start, client, share, batch)
            for client, share in zip(producers, shares, strict=True)
        ]
        futures += [pool.submit(_consume, run, start, client) for client in consumers]
        start.wait()
        started_at = time.perf_counter()
    for future in futures:
        future.result()
    check_once(sent, run.received)
    return messages / (run.ended_at - started_at)


def _produce(run: _Run, start: threading.Barrier, client: Client, share: Sequence[str], batch: int) -> None:
    start.wait()
    try:
        for first in range(0, len(share), batch):
            client.put(share[first : first + batch])
    except BaseException:
        run.failed = True
        raise


def _consume(run: _Run, start: threading.Barrier, client: Client) -> None:
    start.wait()
    try:
        while not run.over():
            if taken := client.take():
                run.settle(taken)
    except BaseException:
        run.failed = True
        raise
