"""What one start of a receiver has in hand: begun and settled message by message, or given back."""

from __future__ import annotations

import queue as queues
import threading
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from postroad.bus.breaker import CircuitBreaker
from postroad.bus.config import SQSEventBusConfig
from postroad.bus.health import Tally
from postroad.bus.inlets import Inlet
from postroad.bus.judging import Ack, Judge, Release
from postroad.bus.occupancy import Occupancy
from postroad.bus.settling import Settler
from postroad.bus.telling import Teller
from postroad.queues import Delivery, Queue
from postroad.queues.burying import describe
from postroad.queues.holding import Held, Holdings

Lane = list[Held]
"""Messages that are handled one after another."""
_inside: ContextVar[Hands | None] = ContextVar("postroad_receiver", default=None)


@dataclass(slots=True, kw_only=True)
class Reception:
    """What all starts of one bus's receiver share."""

    config: SQSEventBusConfig
    inlet: Inlet
    judge: Judge
    settler: Settler
    holdings: Holdings
    breaker: CircuitBreaker
    teller: Teller
    tally: Tally
    occupancy: Occupancy


class Hands:
    """Hands messages to handlers, on the caller's thread or on workers, until it is told to stop."""

    def __init__(self, reception: Reception, handled: list[Any] | None = None) -> None:
        self.stopping = threading.Event()
        self._reception = reception
        self._handled = handled
        self._most = reception.config.concurrency
        self._gate = threading.Condition()
        self._unbegun: dict[int, Held] = {}
        self._busy = 0
        self._over = False
        self._lanes: queues.SimpleQueue[Lane | None] = queues.SimpleQueue()
        self._open_lanes = 0

    def serves(self, reception: Reception | None) -> bool:
        """Whether it works for this receiver."""
        return self._reception is reception

    def take(self, source: Queue, deliveries: Sequence[Delivery]) -> list[Lane]:
        """Hold what came, lane by lane; what a stop can no longer see is given back here."""
        helds = self._reception.holdings.take(source, deliveries)
        with self._gate:
            self._unbegun.update({id(held): held for held in helds})
        if self.stopping.is_set():
            self.give_back()
        return _arranged(helds) if source.traits.fifo else [[held] for held in helds]

    def start_workers(self) -> None:
        """Start a thread for each lane that may run at the same time."""
        for number in range(self._most):
            threading.Thread(target=self._work, name=f"postroad-handler-{number}", daemon=True).start()

    def end_workers(self) -> None:
        """Let the workers end when nothing is left to do."""
        for _ in range(self._most):
            self._lanes.put(None)

    def wait_for_worker(self) -> bool:
        """Wait until a worker is free; False when the receiver stops instead."""
        with self._gate:
            self._gate.wait_for(lambda: self._open_lanes < self._most or self.stopping.is_set())
            return not self.stopping.is_set()

    def hand_out(self, lanes: Sequence[Lane]) -> None:
        """Leave the lanes to the workers."""
        with self._gate:
            self._open_lanes += len(lanes)
        for lane in lanes:
            self._lanes.put(lane)

    def run(self, lane: Lane) -> None:
        """Handle and settle one message after another; a failed one takes back with it what waits behind it."""
        for index, held in enumerate(lane):
            if not self._begin(held):
                return
            try:
                release = self._reception.settler.lose(held) if held.lost else self._handle(held)
                if release is not None:
                    self._release(held, lane[index + 1 :], release)
                    return
            except BaseException:
                # Unsettled, it comes back by itself when its visibility ends.
                self._reception.holdings.let_go([held])
                raise
            finally:
                self._end()

    def halt(self) -> None:
        """Begin on nothing more."""
        with self._gate:
            self.stopping.set()
            self._gate.notify_all()

    def give_back(self) -> None:
        """Release all on which nothing began."""
        with self._gate:
            helds, self._unbegun = list(self._unbegun.values()), {}
        if helds:
            self._reception.settler.give_back(helds)

    def finish(self, deadline: float) -> bool:
        """Wait for the handlers that run, and start none of an event's others after the deadline; False if some do."""
        others = int(self.is_here)
        with self._gate:
            if not others:
                self._gate.wait_for(lambda: self._busy == 0, timeout=max(0.0, deadline - time.monotonic()))
            self._over = True
            return self._busy <= others

    @property
    def is_here(self) -> bool:
        """Whether the caller is one of the handlers that it waits for."""
        return _inside.get() is self

    def _work(self) -> None:
        while (lane := self._lanes.get()) is not None:
            try:
                with self._reception.occupancy.inside():
                    self.run(lane)
            except Exception as error:
                self._reception.tally.last_error = str(error)
                self._reception.teller.tell("bus_receive_failed", error=describe(error))
                self._reception.settler.give_back(self._withdraw(lane))
            with self._gate:
                self._open_lanes -= 1
                self._gate.notify_all()

    def _handle(self, held: Held) -> Release | None:
        token = _inside.set(self)
        try:
            verdict = self._reception.judge.judge(held.delivery, lambda: self._over)
        except BaseException as error:
            # sys.exit() in a handler is its failure and must not end the receiver; a caller of receive_once hears it.
            if self._handled is not None:
                self._reception.settler.release([held], error=describe(error))
                raise
            verdict = self._reception.judge.failed(held.delivery, error)
        finally:
            _inside.reset(token)
        if self._handled is not None and isinstance(verdict, Ack) and verdict.outcome == "handled":
            self._handled.append(verdict.event)
        return self._reception.settler.settle(held, verdict)

    def _release(self, failed: Held, behind: Sequence[Held], release: Release) -> None:
        """Give back the failed one and what waits behind it, in one call, so that one delay holds for the group."""
        spared = self._withdraw(behind)
        for held in spared:
            self._reception.judge.memory.spare(held.delivery.message_id)
        self._reception.settler.release([failed, *spared], after=release.after, error=release.error)

    def _begin(self, held: Held) -> bool:
        with self._gate:
            if self.stopping.is_set() or self._unbegun.pop(id(held), None) is None:
                return False
            self._busy += 1
        self._reception.holdings.begin(held)
        return True

    def _end(self) -> None:
        with self._gate:
            self._busy -= 1
            self._gate.notify_all()

    def _withdraw(self, helds: Sequence[Held]) -> list[Held]:
        """Those of them on which nothing began and which a stop has not given back already."""
        with self._gate:
            return [held for held in helds if self._unbegun.pop(id(held), None) is not None]


def receives_for(reception: Reception | None) -> bool:
    """Whether the caller runs inside a handler of this receiver."""
    hands = _inside.get()
    return hands is not None and hands.serves(reception)


def _arranged(helds: Sequence[Held]) -> list[Lane]:
    """The messages of each group, in order, as a lane."""
    groups: dict[str | None, Lane] = {}
    for held in helds:
        groups.setdefault(held.delivery.group, []).append(held)
    return list(groups.values())
