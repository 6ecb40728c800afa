"""What every scene of the demo plays on: the backend, its database, and the pauses of irregular traffic."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from postroad.receiving import current_context
from postroad.settings import Settings
from postroad.up.demo.database import DemoDatabase
from postroad.wiring import Backend

_BURST_CHANCE = 0.06
_BURST = (4, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One demo: where its scenes publish and record what came of it, and when they end.

    Attributes:
        backend: The store of queues and topics.
        database: The application's database.
        settings: The tenant and the app.
        quiet: Set when nothing new shall be published; handlers go on.
        stop: Set when everything shall end.
    """

    backend: Backend
    database: DemoDatabase
    settings: Settings
    quiet: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    chance: random.Random = field(default_factory=random.Random)

    def beats(self, per_second: float) -> Iterator[None]:
        """Yield so often on average, in bursts and with lulls as real traffic has them, until it shall be quiet."""
        # A burst is several events at once; the pauses are longer, so that the average stays.
        extra = 1 + _BURST_CHANCE * (sum(_BURST) / 2 - 1)
        while True:
            pause = self.chance.expovariate(per_second / extra)
            if self.quiet.wait(pause) or self.stop.is_set():
                return
            burst = self.chance.randint(*_BURST) if self.chance.random() < _BURST_CHANCE else 1
            for _ in range(burst):
                yield

    @contextmanager
    def working(self, *work: Callable[[threading.Event], object]) -> Iterator[None]:
        """Run functions that take the event `stop` beside the block; then wait until they all have ended.

        If one of them fails, everything stops, and its error is raised here.
        """
        errors: list[BaseException] = []

        def guarded(function: Callable[[threading.Event], object]) -> None:
            try:
                function(self.stop)
            except BaseException as error:
                errors.append(error)
                self.end()

        threads = [threading.Thread(target=guarded, args=(function,), name="demo") for function in work]
        for thread in threads:
            thread.start()
        try:
            yield
            self.stop.wait()
        finally:
            self.end()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]

    def end(self) -> None:
        """Let everything end."""
        self.quiet.set()
        self.stop.set()


def handled_event() -> tuple[str, int]:
    """Return the id of the event that the calling handler handles, and how many attempts at it have failed."""
    context = current_context()
    assert context is not None
    return str(context.envelope.event_id), max(0, context.receive_count - 1)
