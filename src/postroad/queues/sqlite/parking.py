"""Receivers that wait: a send of this process leases to them inside its own transaction."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from postroad.engine.listeners import Listener
from postroad.engine.transaction import Transaction
from postroad.queues.sqlite.claiming import Leased

_UNDECIDED = 0.05


class Waiter:
    """A receiver that found nothing."""

    __slots__ = ("leased", "limit", "listener", "state", "visibility_us")

    def __init__(self, listener: Listener, limit: int, visibility_us: int | None) -> None:
        self.listener = listener
        self.limit = limit
        self.visibility_us = visibility_us
        self.leased: list[Leased] = []
        self.state: Literal["away", "parked", "taken"] = "away"


Claim = Callable[[Waiter], list[Leased]]


class Parking:
    """Where the waiting receivers of this process's queues are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[int, deque[Waiter]] = {}

    def park(self, queue_id: int, waiter: Waiter) -> None:
        """Let the next send serve this receiver."""
        with self._lock:
            if waiter.state == "away":
                waiter.state = "parked"
                self._waiters.setdefault(queue_id, deque()).append(waiter)

    def withdraw(self, queue_id: int, waiter: Waiter) -> list[Leased]:
        """Stop waiting, and take what a send has leased meanwhile."""
        while True:
            with self._lock:
                if waiter.state == "parked":
                    self._remove(queue_id, waiter)
                if waiter.state == "away":
                    return waiter.leased
            # A send has taken it off the list and not yet committed; its outcome comes in a moment.
            waiter.listener.wait(_UNDECIDED)

    def serve(self, tx: Transaction, queue_id: int, claim: Claim) -> None:
        """Lease what this transaction sent to waiting receivers; they get it when it is committed."""
        if queue_id not in self._waiters:
            return
        taken: list[Waiter] = []
        # Said before the first is taken off the list: whatever interrupts leaves nobody behind.
        tx.after_rollback(partial(self._put_back, queue_id, taken))
        while (waiter := self._take(queue_id, taken)) is not None:
            leased = claim(waiter)
            if not leased:
                self._put_back(queue_id, [waiter])
                return
            tx.after_commit(partial(self._hand, waiter, leased))

    def _take(self, queue_id: int, taken: list[Waiter]) -> Waiter | None:
        """The next waiter, off the list before anything is leased for it: a lease is never left with nobody."""
        with self._lock:
            waiters = self._waiters.get(queue_id)
            if not waiters:
                return None
            waiter = waiters[0]
            taken.append(waiter)
            waiter.state = "taken"
            waiters.popleft()
            return waiter

    def _put_back(self, queue_id: int, taken: Sequence[Waiter]) -> None:
        with self._lock:
            waiters = self._waiters.setdefault(queue_id, deque())
            for waiter in reversed(taken):
                if waiter.state == "taken":
                    if waiter not in waiters:
                        waiters.appendleft(waiter)
                    waiter.state = "parked"

    def _hand(self, waiter: Waiter, leased: list[Leased]) -> None:
        with self._lock:
            waiter.leased = leased
            waiter.state = "away"
        waiter.listener.wake()

    def _remove(self, queue_id: int, waiter: Waiter) -> None:
        waiters = self._waiters.get(queue_id, deque())
        # It is not there yet when it was interrupted while it parked.
        if waiter in waiters:
            waiters.remove(waiter)
        waiter.state = "away"
        if not waiters:
            self._waiters.pop(queue_id, None)
