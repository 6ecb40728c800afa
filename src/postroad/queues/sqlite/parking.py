"""Receivers that wait: a send of this process leases to them inside its own transaction."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

from postroad.connections.transaction import Transaction
from postroad.connections.waiting import Ear
from postroad.queues.sqlite.claiming import Leased

_UNDECIDED = 0.05


class Waiter:
    """A receiver that found nothing."""

    __slots__ = ("ear", "leased", "limit", "state", "visibility_us")

    def __init__(self, ear: Ear, limit: int, visibility_us: int | None) -> None:
        self.ear = ear
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
            waiter.ear.wait(_UNDECIDED)

    def serve(self, tx: Transaction, queue_id: int, claim: Claim) -> None:
        """Lease what this transaction sent to waiting receivers; they get it when it is committed."""
        while (waiter := self._take(queue_id)) is not None:
            # Taken off the list before anything is leased for it: a lease is never left with nobody.
            tx.after_rollback(partial(self._put_back, queue_id, waiter))
            leased = claim(waiter)
            if not leased:
                self._put_back(queue_id, waiter)
                return
            tx.after_commit(partial(self._hand, waiter, leased))

    def _take(self, queue_id: int) -> Waiter | None:
        with self._lock:
            waiters = self._waiters.get(queue_id)
            if not waiters:
                return None
            waiter = waiters.popleft()
            waiter.state = "taken"
            return waiter

    def _put_back(self, queue_id: int, waiter: Waiter) -> None:
        with self._lock:
            if waiter.state == "taken":
                waiter.state = "parked"
                self._waiters.setdefault(queue_id, deque()).appendleft(waiter)

    def _hand(self, waiter: Waiter, leased: list[Leased]) -> None:
        with self._lock:
            waiter.leased = leased
            waiter.state = "away"
        waiter.ear.ring()

    def _remove(self, queue_id: int, waiter: Waiter) -> None:
        waiters = self._waiters[queue_id]
        waiters.remove(waiter)
        waiter.state = "away"
        if not waiters:
            del self._waiters[queue_id]
