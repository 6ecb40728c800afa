"""Whose turn it is to write: the first thread leads for all that wait, then hands over to the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from postroad.connections.transaction import Transaction

MAX_GROUP: Final = 256


class Request:
    """One thread's wish, and what became of it. Without work its thread wants a turn of its own."""

    __slots__ = ("baton", "done", "durable", "error", "leads", "result", "work")

    def __init__(self, work: Callable[[Transaction], Any] | None, *, durable: bool) -> None:
        self.work = work
        self.durable = durable
        self.baton: threading.Lock | None = None
        self.leads = False
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class Turns:
    """The list of requests, of which one thread at a time takes as many as fit into a transaction."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._led = False

    def join(self, request: Request) -> list[Request]:
        """The group to run when it is this thread's turn; empty when another thread has done the request."""
        try:
            with self._lock:
                if not self._led:
                    request.leads = self._led = True
                    return [request]
                baton = request.baton = threading.Lock()
                baton.acquire()
                self._waiting.append(request)
            baton.acquire()
        except BaseException:
            self._leave(request)
            raise
        return self._take() if request.leads else []

    def _take(self) -> list[Request]:
        """The requests of this turn; one without work has a turn of its own."""
        with self._lock:
            waiting = self._waiting
            size = min(len(waiting), MAX_GROUP)
            alone = next((i for i in range(size) if waiting[i].work is None), size)
            size = alone or 1
            taken = waiting[:size]
            del waiting[:size]
            return taken

    def hand_over(self, leader: Request, group: list[Request]) -> None:
        """End the turn: let the next thread lead first, so that it works while the group wakes up."""
        with self._lock:
            if not group and leader in self._waiting:
                self._waiting.remove(leader)
            following = self._waiting[0] if self._waiting else None
            if following is None:
                self._led = False
            else:
                following.leads = True
        if following is not None and following.baton is not None:
            following.baton.release()
        for request in group:
            request.done = True
            if request is not leader and request.baton is not None:
                request.baton.release()

    def _leave(self, request: Request) -> None:
        """Forget a request whose thread was interrupted while it waited; one that leads by now hands over."""
        with self._lock:
            if not request.leads and request in self._waiting:
                self._waiting.remove(request)
