"""One stretch of work of a consumer: groups in parallel, each group in order, and a stop that hides nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

from postroad.inbox.applying import Again
from postroad.inbox.judging import Judge
from postroad.inbox.report import ConsumeReport
from postroad.inbox.settling import Settler
from postroad.queues import Delivery
from postroad.queues.burying import describe
from postroad.queues.holding import Held, Holdings

_inside: ContextVar[Shift | None] = ContextVar("postroad_consumer", default=None)


class Shift:
    """Handles what it is given on up to `concurrency` threads. Messages on which nothing began can be given back."""

    def __init__(self, judge: Judge, settler: Settler, holdings: Holdings, *, concurrency: int, raises: bool) -> None:
        self._judge = judge
        self._settler = settler
        self._holdings = holdings
        self._concurrency = concurrency
        self._raises = raises and concurrency == 1
        self._changed = threading.Condition()
        self._unbegun: dict[int, Held] = {}
        self._open_lanes = 0
        self._stopping = False
        self.database_failed = False
        """Whether the database was at fault since this was last set to False."""
        self._pool = ThreadPoolExecutor(concurrency, "postroad-consumer") if concurrency > 1 else None

    def hand_out(self, deliveries: Sequence[Delivery]) -> None:
        """Handle the messages: here when there is one thread only, else on others."""
        helds = self._holdings.take(self._settler.queue, deliveries)
        self._settler.tally.add("received", len(helds))
        lanes = _lanes(helds, fifo=self._settler.queue.traits.fifo)
        with self._changed:
            self._unbegun.update({id(held): held for held in helds})
            self._open_lanes += len(lanes)
            late = self._stopping
        if late:
            # They came after a stop had given back what it saw.
            self._settler.give_back(self._withdraw(helds))
        for lane in lanes:
            if self._pool is None:
                self._run(lane)
            else:
                self._pool.submit(self._run, lane)

    def wait_for_a_free_thread(self, timeout: float) -> bool:
        """Whether another message would find a thread; waits for one up to `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open_lanes < self._concurrency, timeout)

    def wait_until_idle(self, timeout: float | None = None) -> bool:
        """Whether all that was handed out is settled; waits for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open_lanes == 0, timeout)

    @property
    def is_here(self) -> bool:
        """Whether the caller is one of its handlers: waiting for it to end would last for ever."""
        return _inside.get() is self

    def stop(self, timeout: float | None) -> bool:
        """Begin nothing more and give back what nothing began on; whether all handlers ended in time."""
        with self._changed:
            self._stopping = True
            helds, self._unbegun = list(self._unbegun.values()), {}
        self._settler.give_back(helds)
        if self.is_here:
            return True
        ended = self.wait_until_idle(timeout)
        self._settler.acker.flush()
        if self._pool is not None:
            self._pool.shutdown(wait=ended)
        return ended

    def report(self) -> ConsumeReport:
        """What became of the messages so far."""
        return ConsumeReport(**self._settler.tally.take())

    def _run(self, lane: Sequence[Held]) -> None:
        try:
            for index, held in enumerate(lane):
                if not self._begin(held):
                    return
                behind = lane[index + 1 :]
                again = self._handle(held, behind)
                if again is None or self._settler.gave_up(held, again, behind):
                    continue
                self.database_failed |= again.database
                self._settler.again(held, self._withdraw(behind), again)
                return
        finally:
            self._end()

    def _handle(self, held: Held, behind: Sequence[Held]) -> Again | None:
        token = _inside.set(self)
        try:
            verdict, event = self._judge.judge(held.delivery)
            return self._settler.settle(held, verdict, event)
        except BaseException as error:
            # sys.exit() in a handler is its failure; only a caller who waits for it here may hear of it.
            again = Again(outcome="failed", error=describe(error))
            if self._raises:
                self._settler.again(held, self._withdraw(behind), again)
                raise
            return again
        finally:
            _inside.reset(token)

    def _end(self) -> None:
        with self._changed:
            self._open_lanes -= 1
            idle = self._open_lanes == 0
            self._changed.notify_all()
        if idle:
            # Nobody else is about to fill the batch of acks.
            self._settler.acker.flush()

    def _begin(self, held: Held) -> bool:
        """Whether the message is still ours to handle."""
        with self._changed:
            if self._stopping or self._unbegun.pop(id(held), None) is None:
                return False
        if held.lost:
            self._settler.give_back([held])
            return False
        self._holdings.begin(held)
        return True

    def _withdraw(self, helds: Sequence[Held]) -> list[Held]:
        with self._changed:
            return [held for held in helds if self._unbegun.pop(id(held), None) is not None]


def _lanes(helds: Sequence[Held], *, fifo: bool) -> list[list[Held]]:
    """What runs one after another: the messages of one group, in order; all others alone."""
    lanes: dict[object, list[Held]] = {}
    for held in helds:
        lanes.setdefault(held.delivery.group if fifo else id(held), []).append(held)
    return list(lanes.values())
