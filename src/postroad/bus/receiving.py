"""One start of a receiver: polls, hands to handlers, and stops without losing or hiding anything."""

from __future__ import annotations

import queue as queues
import random
import threading
import time
from collections.abc import Callable, Sequence
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
from postroad.errors import PostroadError, QueueNotFound, TransportError
from postroad.queues import Delivery, Queue
from postroad.queues.backoff import Backoff
from postroad.queues.burying import describe
from postroad.queues.holding import Held, Holdings

# How long a wait may be where waiting costs nothing, so that a stop is noticed soon.
_SLICE_SECONDS = 0.5
# How long a stop waits for the transport to take back what was in hand, when its own time is over.
_GRACE_SECONDS = 0.2
_inside: ContextVar[Run | None] = ContextVar("postroad_receiver", default=None)


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


class Run:
    """One start. Its stop signal is its own, so that an old thread never comes back to life."""

    def __init__(self, reception: Reception, owner: object) -> None:
        self._reception = reception
        # A bus whose receiver runs lives on, even when its maker keeps no hold of it.
        self._owner = owner
        self._config = reception.config
        self._stopping = threading.Event()
        self._gate = threading.Condition()
        self._unbegun: dict[int, Held] = {}
        self._busy = 0
        self._over = False
        self._lanes: queues.SimpleQueue[list[Held] | None] = queues.SimpleQueue()
        self._open_lanes = 0
        self._thread: threading.Thread | None = None
        self._waits_are_short = False
        self._handled: list[Any] = []
        self._keeps_events = False

    @property
    def alive(self) -> bool:
        """Whether it still receives."""
        return self._thread is not None and self._thread.is_alive() and not self._stopping.is_set()

    def serves(self, reception: Reception | None) -> bool:
        """Whether it is a start of this receiver."""
        return self._reception is reception

    def start(self) -> None:
        """Receive on a thread of its own from now on."""
        workers = self._config.concurrency if self._config.concurrency > 1 else 0
        for number in range(workers):
            threading.Thread(target=self._work, name=f"postroad-handler-{number}", daemon=True).start()
        self._thread = threading.Thread(target=self._loop, name="postroad-receiver", daemon=True)
        self._thread.start()

    def once(self) -> list[Any]:
        """Poll once and handle what came; the events that were handled."""
        self._keeps_events = True
        source = self._reception.inlet.source
        try:
            deliveries = [] if self._reception.breaker.pause() else self._poll(source, self._most())
        except QueueNotFound as error:
            if self._reopened(source):
                return []
            raise as_transport_error(error) from error
        except PostroadError as error:
            raise as_transport_error(error) from error
        lanes = self._arranged(self._take(source, deliveries))
        try:
            while lanes:
                self._run_lane(lanes.pop(0))
        finally:
            self._give_back_unbegun()
            self._reception.settler.acker.flush()
        return self._handled

    def stop(self, timeout: float) -> None:
        """Start no handler from the moment this returns, at the latest after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._gate:
            self._stopping.set()
            self._gate.notify_all()
        self._within(deadline, self._give_back_unbegun)
        inside = _inside.get() is self
        with self._gate:
            if not inside:
                self._gate.wait_for(lambda: self._busy == 0, timeout=max(0.0, deadline - time.monotonic()))
            still_busy, self._over = self._busy > int(inside), True
        if still_busy:
            self._reception.teller.tell("bus_stop_timed_out")
        self._within(deadline, self._reception.settler.acker.flush)
        if not inside and self._thread is not None and self._waits_are_short:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _within(self, deadline: float, action: Callable[[], None]) -> None:
        """Do it, and go on without waiting for its end when a network that is gone keeps it for too long."""
        if self._waits_are_short:
            action()
            return
        thread = threading.Thread(target=action, name="postroad-stop", daemon=True)
        thread.start()
        thread.join(max(_GRACE_SECONDS, deadline - time.monotonic()))

    def _loop(self) -> None:
        with self._reception.occupancy.inside():
            self._receive()
        for _ in range(self._config.concurrency):
            self._lanes.put(None)

    def _receive(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            if not self._wait_for_turn():
                break
            if (pause := self._reception.breaker.pause()) > 0:
                self._stopping.wait(min(pause, _SLICE_SECONDS))
                continue
            try:
                self._serve(self._reception.inlet.source, backoff)
            except Exception as error:
                self._give_back_unbegun()
                self._failed(error, backoff)

    def _serve(self, source: Queue, backoff: Backoff) -> None:
        """Poll once and hand out what came. An own queue that somebody removed is made again."""
        try:
            deliveries = self._poll(source, self._most())
        except QueueNotFound:
            if self._stopping.is_set() or not self._reopened(source):
                raise
            return
        backoff.reset()
        self._reception.tally.last_error = None
        self._hand_out(source, deliveries)

    def _wait_for_turn(self) -> bool:
        """Wait until a worker is free; False when the receiver stops instead."""
        with self._gate:
            self._gate.wait_for(lambda: self._open_lanes < self._config.concurrency or self._stopping.is_set())
            return not self._stopping.is_set()

    def _most(self) -> int:
        return 1 if self._reception.breaker.state == "half_open" else self._config.max_messages_per_poll

    def _poll(self, source: Queue, most: int) -> list[Delivery]:
        deadline = time.monotonic() + self._config.wait_time_seconds
        self._waits_are_short = source.traits.short_waits
        longest = _SLICE_SECONDS if self._waits_are_short else self._config.wait_time_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = source.receive(
                max_messages=most, wait=min(left, longest), visibility=self._config.visibility_timeout_seconds
            )
            if found or time.monotonic() >= deadline or self._stopping.is_set():
                return found

    def _failed(self, error: Exception, backoff: Backoff) -> None:
        reception = self._reception
        if self._stopping.is_set():
            return
        reception.tally.last_error = str(error)
        reception.breaker.failed()
        reception.teller.tell("bus_receive_failed", error=str(error))
        self._stopping.wait(backoff.next(random.random()))  # noqa: S311 - spreads retries, guards nothing

    def _reopened(self, lost: Queue) -> bool:
        """Make an own queue again that somebody removed; a gap is never silent."""
        try:
            reopened = self._reception.inlet.reopen(lost)
        except PostroadError:
            return False
        if reopened:
            self._reception.tally.add("gaps")
            self._reception.teller.tell("bus_gap", queue=self._reception.inlet.source.name)
        return reopened

    def _hand_out(self, source: Queue, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            self._stopping.wait(self._config.poll_interval_seconds)
            return
        lanes = self._arranged(self._take(source, deliveries))
        if self._config.concurrency == 1:
            for lane in lanes:
                self._run_lane(lane)
            self._reception.settler.acker.flush()
            return
        with self._gate:
            self._open_lanes += len(lanes)
        for lane in lanes:
            self._lanes.put(lane)

    def _take(self, source: Queue, deliveries: Sequence[Delivery]) -> list[Held]:
        """Hold what came; what a stop can no longer see is given back here."""
        helds = self._reception.holdings.take(source, deliveries)
        with self._gate:
            self._unbegun.update({id(held): held for held in helds})
        if self._stopping.is_set():
            self._give_back_unbegun()
        return helds

    def _arranged(self, helds: Sequence[Held]) -> list[list[Held]]:
        """What runs one after another: the messages of one group, in order; all others alone."""
        groups: dict[object, list[Held]] = {}
        for held in helds:
            fifo = held.queue.traits.fifo
            groups.setdefault(held.delivery.group if fifo else id(held), []).append(held)
        return list(groups.values())

    def _work(self) -> None:
        while (lane := self._lanes.get()) is not None:
            try:
                self._run_lane(lane)
            except Exception as error:
                self._reception.tally.last_error = str(error)
                self._reception.teller.tell("bus_receive_failed", error=describe(error))
                self._reception.settler.give_back(self._withdraw(lane))
            with self._gate:
                self._open_lanes -= 1
                self._gate.notify_all()

    def _run_lane(self, lane: Sequence[Held]) -> None:
        for index, held in enumerate(lane):
            if not self._begin(held):
                return
            try:
                with self._reception.occupancy.inside():
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

    def _handle(self, held: Held) -> Release | None:
        token = _inside.set(self)
        try:
            verdict = self._reception.judge.judge(held.delivery, lambda: self._over)
        except BaseException as error:
            # sys.exit() in a handler is its failure and must not end the receiver; a caller of receive_once hears it.
            if self._keeps_events:
                self._reception.settler.release([held], error=describe(error))
                raise
            attempt = held.delivery.receive_count
            return Release(outcome="failed", after=self._config.retry_delay(attempt), error=describe(error))
        finally:
            _inside.reset(token)
        if self._keeps_events and isinstance(verdict, Ack) and verdict.outcome == "handled":
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
            if self._stopping.is_set() or self._unbegun.pop(id(held), None) is None:
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

    def _give_back_unbegun(self) -> None:
        with self._gate:
            helds, self._unbegun = list(self._unbegun.values()), {}
        if helds:
            self._reception.settler.give_back(helds)


def receives_for(reception: Reception | None) -> bool:
    """Whether the caller runs inside a handler of this receiver."""
    run = _inside.get()
    return run is not None and run.serves(reception)


def as_transport_error(error: PostroadError) -> TransportError:
    """The error of a poll as `receive_once` raises it."""
    if isinstance(error, TransportError):
        return error
    return TransportError(str(error))
