"""Whose turn it is to write: the first thread leads for all that wait, then hands over to the next one.

Ctrl-C may arrive between any two steps of the main thread. So every step here can be done again: what is half done when
it arrives is found in the request, and `finish` is repeated until it has passed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

from postroad.connections.transaction import Transaction

MAX_GROUP: Final = 256


class Request:
    """One thread's wish, and what became of it. Without work its thread wants a turn of its own."""

    __slots__ = ("baton", "durable", "error", "finished", "gone", "group", "leads", "result", "successor", "work")

    def __init__(self, work: Callable[[Transaction], Any] | None, *, durable: bool) -> None:
        self.work = work
        self.durable = durable
        self.baton: threading.Lock | None = None
        self.leads = False
        self.group: list[Request] = []
        """The requests of its turn, when it leads."""
        self.successor: Request | None = None
        self.gone = False
        """Whether its thread was interrupted and waits no more."""
        self.finished = False
        """Whether result or error say what became of it."""
        self.result: Any = None
        self.error: BaseException | None = None


class Turns:
    """The list of requests, of which one thread at a time takes as many as fit into a transaction."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._led = False

    def join(self, request: Request) -> bool:
        """Return True when it is this thread's turn to run `request.group`, False when another thread has done it."""
        with self._lock:
            if not self._led:
                request.group = [request]
                request.leads = self._led = True
                return True
            baton = request.baton = threading.Lock()
            baton.acquire()
            self._waiting.append(request)
        baton.acquire()
        if request.leads:
            self._take(request)
        return request.leads

    def _take(self, leader: Request) -> None:
        """Give the leader the requests of its turn; one without work has a turn of its own."""
        with self._lock:
            waiting = self._waiting
            size = min(len(waiting), MAX_GROUP)
            size = next((i for i in range(size) if waiting[i].work is None), size) or 1
            leader.group = waiting[:size]
            del waiting[:size]

    def take_light(self, leader: Request) -> list[Request]:
        """Wake the group, and give the leader those that wait for no disk: quicker done here than handed over."""
        for request in leader.group:
            if request.finished and request is not leader:
                _release(request)
        with self._lock:
            waiting = self._waiting
            size = next((i for i, each in enumerate(waiting) if each.durable or each.work is None), len(waiting))
            taken = waiting[:size]
            leader.group = [leader, *taken]
            del waiting[:size]
        return taken

    def finish(self, request: Request) -> None:
        """End the request's turn, or forget a request whose thread was interrupted while it waited."""
        with self._lock:
            if request.leads:
                self._pass_on(request)
            elif not request.finished:
                request.gone = True
                if request in self._waiting:
                    self._waiting.remove(request)
        if request.successor is not None:
            _release(request.successor)
        while request.group:
            if request.group[-1] is not request:
                _release(request.group[-1])
            request.group.pop()

    def _pass_on(self, leader: Request) -> None:
        """Choose the next leader first, so that it works while the group wakes up."""
        if leader in self._waiting:
            self._waiting.remove(leader)
        # What an interrupted leader left undone is done in the next turn.
        undone = [request for request in leader.group if not (request.finished or request.gone or request is leader)]
        leader.group = [request for request in leader.group if request.finished]
        self._waiting[:0] = undone
        if self._waiting:
            leader.successor = self._waiting[0]
            leader.successor.leads = True
        else:
            self._led = False
        leader.leads = False


def _release(request: Request) -> None:
    # Released already, when an interrupted step is done again.
    with contextlib.suppress(RuntimeError):
        if request.baton is not None:
            request.baton.release()
