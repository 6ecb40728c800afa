"""Whose turn it is: one thread at a time writes for all that wait, one at a time waits for the disk.

The first thread leads: it writes and commits. Then the next one may write while the first still waits for the disk.
Requests that need the disk wait until it is free, so that one sync serves all of them; those that do not need it go on
meanwhile.

Ctrl-C may arrive between any two steps of the main thread. So every step here can be done again: whose turn it is, is
one assignment, and `finish` is repeated until it has passed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from postroad.engine.transaction import Transaction

MAX_GROUP: Final = 256


class Request:
    """One thread's wish, and what became of it. Without work its thread wants a turn of its own."""

    __slots__ = ("baton", "durable", "error", "finished", "gone", "group", "leaves", "on_disk", "result", "work")

    def __init__(self, work: Callable[[Transaction], Any] | None, *, durable: bool, leaves: int = 0) -> None:
        self.work = work
        self.leaves = leaves
        """How many quarters of the room that is kept for a full disk it leaves alone."""
        self.durable = durable
        """Whether it waits for the disk after the commit."""
        self.baton: threading.Lock | None = None
        self.group: list[Request] = []
        """The requests of its turn, when it leads."""
        self.gone = False
        """Whether its thread was interrupted and waits no more."""
        self.finished = False
        """Whether result or error say what became of it."""
        self.on_disk = False
        """Whether its leader has waited for the disk."""
        self.result: Any = None
        self.error: BaseException | None = None


class Turns:
    """The list of requests, of which one thread at a time takes as many as fit into a transaction."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._writer: Request | None = None
        self._syncer: Request | None = None
        self._crowd = 1
        """How many shared the last sync."""

    def join(self, request: Request) -> bool:
        """Return True when it is this thread's turn to run `request.group`, False when another thread has done it."""
        with self._lock:
            if self._writer is None and not (request.durable and self._syncer):
                self._writer = request
            else:
                request.baton = threading.Lock()
                request.baton.acquire()
                self._waiting.append(request)
        if request.baton is not None:
            request.baton.acquire()
            if self._writer is not request:
                return False
        if request.durable and self._crowd > 1:
            self._gather()
        with self._lock:
            self._take(request)
        return True

    def leads(self, request: Request) -> bool:
        """Whether it is the request's turn to write."""
        return self._writer is request

    def pass_on(self, leader: Request) -> None:
        """Let the next one write; those of the group that need not wait for the disk go their way."""
        with self._lock:
            self._end_writing(leader)
        self._wake_writer()
        for request in leader.group:
            if request is not leader and not request.durable:
                _release(request)

    def finish(self, request: Request) -> None:
        """End the request's turn, or forget a request whose thread was interrupted while it waited."""
        with self._lock:
            if not self._waiting and request.finished and len(request.group) <= 1:
                self._leave(request)
                return
            if self._writer is request:
                self._end_writing(request)
            elif not request.finished:
                request.gone = True
                if request in self._waiting:
                    self._waiting.remove(request)
            if self._syncer is request:
                self._syncer = None
                if self._writer is None:
                    self._writer = self._next()
        self._wake_writer()
        while request.group:
            if request.group[-1] is not request:
                _release(request.group[-1])
            request.group.pop()

    def _gather(self) -> None:
        """Let those who shared the last sync come back with their next wish, as long as more of them are found."""
        came = -1
        while came < len(self._waiting) < self._crowd:
            came = len(self._waiting)
            time.sleep(0)

    def _leave(self, request: Request) -> None:
        """End a turn that nobody shared and for which nobody waits."""
        if self._writer is request:
            self._writer = None
        if self._syncer is request:
            self._syncer = None
        request.group = []

    def _take(self, leader: Request) -> None:
        """Give the leader the requests of its turn: all that wait, or all that need no disk."""
        if leader.durable:
            self._syncer = leader
        leader.group = [leader]
        if leader.work is not None:
            leader.group += [r for r in self._waiting if _may_follow(r, leader)][: MAX_GROUP - 1]
        if leader.durable:
            self._crowd = sum(request.durable for request in leader.group)
        if self._waiting:
            taken = set(map(id, leader.group))
            self._waiting = [r for r in self._waiting if id(r) not in taken]

    def _end_writing(self, leader: Request) -> None:
        if leader in self._waiting:
            self._waiting.remove(leader)
        # What an interrupted leader left undone is done in the next turn.
        undone = [request for request in leader.group if not (request.finished or request.gone or request is leader)]
        if undone:
            # One that was interrupted while it took them has left them on the list.
            again = [request for request in undone if request not in self._waiting]
            done = [request for request in leader.group if request.finished]
            self._waiting[:0] = again
            leader.group = done
        self._writer = self._next()

    def _next(self) -> Request | None:
        """Who writes next: the first that needs the disk when it is free, taking all others along."""
        if not self._waiting:
            return None
        if self._syncer is None:
            first = next((request for request in self._waiting if request.durable), None)
            if first is not None:
                return first
        return next((request for request in self._waiting if not request.durable), None)

    def _wake_writer(self) -> None:
        # Awake already, it does not notice.
        if self._writer is not None:
            _release(self._writer)


def _may_follow(request: Request, leader: Request) -> bool:
    return request is not leader and request.work is not None and (leader.durable or not request.durable)


def _release(request: Request) -> None:
    try:
        if request.baton is not None:
            request.baton.release()
    except RuntimeError:
        # Released already, when an interrupted step is done again.
        return
