"""One start of a receiver: polls, hands to handlers, and stops without losing or hiding anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from postroad.backoff import CHANCE, Backoff
from postroad.bus.hands import Hands, Reception
from postroad.errors import InvalidInput, PostroadError, QueueNotFound, TransportError
from postroad.queues import Delivery, Queue

# How long a wait may be where waiting costs nothing, so that a stop is noticed soon.
_SLICE_SECONDS = 0.5
# How long a stop waits for the transport to take back what was in hand, when its own time is over.
_GRACE_SECONDS = 0.2
# What stands for ever: locks refuse to wait much longer than this.
_YEAR_SECONDS = 31_536_000.0


class Run:
    """One start. Its stop signal is its own, so that an old thread never comes back to life."""

    def __init__(self, reception: Reception, owner: object) -> None:
        self._reception = reception
        # A bus whose receiver runs lives on, even when its maker keeps no hold of it.
        self._owner = owner
        self._config = reception.config
        self._hands = Hands(reception)
        self._stopping = self._hands.stopping
        self._thread: threading.Thread | None = None
        self._waits_are_short = False

    @property
    def alive(self) -> bool:
        """Whether it still receives."""
        return self._thread is not None and self._thread.is_alive() and not self._stopping.is_set()

    def start(self) -> None:
        """Receive on a thread of its own from now on."""
        if self._config.concurrency > 1:
            self._hands.start_workers()
        self._thread = threading.Thread(target=self._loop, name="postroad-receiver", daemon=True)
        self._thread.start()

    def once(self) -> list[Any]:
        """Poll once and handle what came; the events that were handled."""
        handled: list[Any] = []
        with self._reception.occupancy.inside():
            self._handle_once(Hands(self._reception, handled))
        return handled

    def stop(self, timeout: float) -> None:
        """Start no handler from the moment this returns, at the latest after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._hands.halt()
        self._within(deadline, self._hands.give_back)
        if not self._hands.finish(deadline):
            self._reception.teller.tell("bus_stop_timed_out")
        self._within(deadline, self._reception.settler.acker.flush)
        if not self._hands.is_here and self._thread is not None and self._waits_are_short:
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
        self._hands.end_workers()

    def _receive(self) -> None:
        backoff = Backoff()
        while self._hands.wait_for_worker():
            if (pause := self._reception.breaker.pause()) > 0:
                self._stopping.wait(min(pause, _SLICE_SECONDS))
                continue
            try:
                self._serve(self._reception.inlet.source, backoff)
            except Exception as error:
                self._hands.give_back()
                self._failed(error, backoff)

    def _serve(self, source: Queue, backoff: Backoff) -> None:
        """Poll once and hand out what came. An own queue that somebody removed is made again."""
        try:
            deliveries = self._poll(source)
        except QueueNotFound:
            if self._stopping.is_set() or not self._reopened(source):
                raise
            return
        backoff.reset()
        self._reception.tally.last_error = None
        if deliveries:
            self._hand_out(source, deliveries)
        else:
            self._stopping.wait(self._config.poll_interval_seconds * CHANCE.uniform(0.5, 1.5))

    def _hand_out(self, source: Queue, deliveries: Sequence[Delivery]) -> None:
        lanes = self._hands.take(source, deliveries)
        if self._config.concurrency > 1:
            self._hands.hand_out(lanes)
            return
        for lane in lanes:
            self._hands.run(lane)
        self._reception.settler.acker.flush()

    def _handle_once(self, hands: Hands) -> None:
        lanes = hands.take(*self._polled_once())
        try:
            while lanes:
                hands.run(lanes.pop(0))
        finally:
            hands.give_back()
            self._reception.settler.acker.flush()

    def _polled_once(self) -> tuple[Queue, list[Delivery]]:
        source = self._reception.inlet.source
        try:
            return source, [] if self._reception.breaker.pause() else self._poll(source)
        except PostroadError as error:
            if isinstance(error, QueueNotFound) and self._reopened(source):
                return source, []
            raise _as_transport_error(error) from error

    def _poll(self, source: Queue) -> list[Delivery]:
        # A breaker that is half open lets single messages through as probes.
        most = 1 if self._reception.breaker.state == "half_open" else self._config.max_messages_per_poll
        deadline = time.monotonic() + self._config.wait_time_seconds
        self._waits_are_short = source.traits.short_waits
        longest = _SLICE_SECONDS if self._waits_are_short else self._config.wait_time_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = source.receive(
                max_messages=most, wait=min(left, longest), visibility=self._config.visibility_timeout_seconds
            )
            # A long poll that is answered early with nothing is over: the pause behind an empty poll follows.
            if found or not self._waits_are_short or time.monotonic() >= deadline or self._stopping.is_set():
                return found

    def _failed(self, error: Exception, backoff: Backoff) -> None:
        if self._stopping.is_set():
            return
        self._reception.tally.last_error = str(error)
        self._reception.breaker.failed()
        self._reception.teller.tell("bus_receive_failed", error=str(error))
        self._stopping.wait(backoff.next())

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


def checked_timeout(timeout: object) -> float:
    """The seconds that a stop may take. What is no time is refused before anything is stopped."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidInput(
            f"timeout: {timeout!r} is not a number of seconds of 0 or more", field="timeout",
            remedy="Give the seconds that stopping may take.",
        )  # fmt: skip
    return min(timeout, _YEAR_SECONDS)


def _as_transport_error(error: PostroadError) -> TransportError:
    """The error of a poll as `receive_once` raises it."""
    return error if isinstance(error, TransportError) else TransportError(str(error))
