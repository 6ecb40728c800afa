"""Threads that make the calls to the publisher; they never keep a process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


class Callers:
    """Up to `most` daemon threads, started as they are needed, that end when told to."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._lock = threading.Lock()

    def submit(self, work: Work) -> None:
        """Run the work on a thread; at most `most` at a time are submitted."""
        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads) and len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name="postroad-outbox-publish", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(work)

    def close(self, *, timeout: float) -> None:
        """End the threads that are idle; those that are stuck in a call end after it."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            thread.join(timeout)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            finally:
                with self._lock:
                    self._busy -= 1
