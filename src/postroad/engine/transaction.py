"""Write transactions, and the turns in which the threads of a process run them.

One thread at a time writes, for all threads that wait; one at a time waits for the disk. The first thread leads: it
writes and commits. Then the next one may write while the first still waits for the disk. Requests that need the disk
wait until it is free, so that one sync serves all of them; the others go on meanwhile.

Ctrl-C may arrive between any two steps of the main thread, so every step here can be repeated: a turn changes hands
in one assignment, and `finish` is repeated until it has succeeded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Protocol

import apsw

MAX_GROUP: Final = 256
_USUAL_ROWS: Final = 10
_MOST_ROWS: Final = 64
_NEXT_ARRIVAL: Final = 0.0001
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Counters(Protocol):
    """Numbers that a store keeps in memory and writes once in each transaction that changes them."""

    def store(self, tx: Transaction) -> None:
        """Write what this transaction changed."""

    def committed(self, tx: Transaction) -> None:
        """Keep what was stored: the transaction is committed."""

    def drop(self) -> None:
        """Forget everything: the transaction was rolled back."""


class AllCounters(list[Counters]):
    """The counters of every store on one file, as one."""

    def store(self, tx: Transaction) -> None:
        """Write what this transaction changed."""
        for counters in self:
            counters.store(tx)

    def committed(self, tx: Transaction) -> None:
        """Keep what was stored."""
        for counters in self:
            counters.committed(tx)

    def drop(self) -> None:
        """Forget everything."""
        for counters in self:
            counters.drop()


class Transaction:
    """One write transaction of the engine, shared by the work of several threads."""

    __slots__ = (
        *("_after", "_before", "_undo", "channels", "committing"),
        *("connection", "cursor", "durable", "kept_quarters", "news", "requests"),
    )

    cursor: apsw.Cursor
    """Runs statements whose rows are all fetched at once; the connection would make a cursor for each statement."""

    def __init__(
        self, connection: apsw.Connection, *, requests: Sequence[Request] = (), kept_quarters: int = 0
    ) -> None:
        self.connection = connection
        self.kept_quarters = kept_quarters
        """How many quarters of the disk reserve it must not use."""
        self.durable = False
        """Whether the work that runs now waits for the disk after the commit."""
        self.requests = requests
        self.news = 0
        """The value of `Listeners.news` when it began."""
        self.committing = False
        self.channels: set[str] = set()
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self._undo: list[Callable[[], None]] = []

    def must_be_durable(self) -> None:
        """Make this work wait for the disk, although it began without the need to."""
        self.durable = True

    def touch(self, channel: str) -> None:
        """After the commit, wake the listeners of the channel in every process."""
        self.channels.add(channel)

    def before_commit(self, action: Callable[[], None]) -> None:
        """Run the action inside the transaction when all work is done."""
        self._before.append(action)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run the action, which must not fail, once the transaction is committed."""
        self._after.append(action)

    def after_rollback(self, action: Callable[[], None]) -> None:
        """Run the action, which undoes a change outside the file, if the transaction is not committed."""
        self._undo.append(action)

    def mark(self) -> tuple[int, int, int]:
        """Return the number of actions of each kind, for `undo`."""
        return len(self._before), len(self._after), len(self._undo)

    def undo(self, mark: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Drop the actions that were added since the mark, and undo their changes. It can be repeated."""
        before, after, undo = mark
        del self._before[before:]
        del self._after[after:]
        while len(self._undo) > undo:
            self._undo[-1]()
            self._undo.pop()

    def finish(self) -> None:
        """Run the actions that were put off until all work is done."""
        for action in self._before:
            action()

    def committed(self) -> None:
        """Run the actions that wait for the commit. Interrupted, it is called again and goes on where it was."""
        while self._after:
            self._after[0]()
            del self._after[0]


class Request:
    """The work of one thread and its outcome. A request without work reserves a turn for its thread."""

    __slots__ = (
        *("durable", "error", "finished", "group", "hands_over", "kept_quarters", "lock", "on_disk", "result", "waits"),
        "work",
    )

    def __init__(self, work: Callable[[Transaction], Any] | None, *, durable: bool, kept_quarters: int = 0) -> None:
        self.work = work
        self.kept_quarters = kept_quarters
        """How many quarters of the disk reserve it must not use."""
        self.durable = durable
        """Whether it waits for the disk after the commit."""
        self.lock: threading.Lock | None = None
        """What its thread waits for."""
        self.waits = False
        """Whether its thread waits for its turn, or for another thread to do the work."""
        self.group: list[Request] = []
        """The requests of its turn, when it leads; then those that are still to be woken."""
        self.hands_over = False
        """Whether its turn to write or to wait for the disk ends, and the next one has to be woken."""
        self.finished = False
        """Whether it has its result or error."""
        self.on_disk = False
        """Whether its leader has waited for the disk."""
        self.result: Any = None
        self.error: BaseException | None = None


class Turns:
    """The waiting requests. One thread at a time takes as many of them as fit into a transaction."""

    def __init__(self) -> None:
        self.writer: Request | None = None
        """The request whose turn it is to write."""
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._syncer: Request | None = None
        self._active = 1
        self._wanted = 0

    def join(self, request: Request) -> bool:
        """Return True when it is this thread's turn to run `request.group`, False when another thread has done it."""
        with self._lock:
            if self.writer is None and not (request.durable and self._syncer):
                self.writer = request
                if not (request.durable and self._active > 1):
                    self._take(request)
                    return True
            else:
                request.lock = threading.Lock()
                request.lock.acquire()
                request.waits = True
                self._waiting.append(request)
                if len(self._waiting) == self._wanted:
                    _release(self.writer)
        if request.lock is not None:
            request.lock.acquire()
            while self.writer is not request:
                if request.finished:
                    return False
                request.lock.acquire()
        if request.durable and self._active > 1:
            self._gather(request)
        with self._lock:
            self._take(request)
        return True

    def pass_on(self, leader: Request) -> None:
        """Let the next request write, and release those of the group that need not wait for the disk."""
        with self._lock:
            # If Ctrl-C arrives before the next one is woken, `finish` wakes it.
            leader.hands_over = True
            self._end_writing(leader)
        _release(self.writer)
        for request in leader.group:
            if request is not leader and not request.durable:
                _release(request)

    def finish(self, request: Request) -> None:
        """End the request's turn, or forget a request whose thread was interrupted while it waited.

        Each thread of a group wakes the next one: woken all at once, they would only wait for the interpreter.
        """
        with self._lock:
            request.waits = False
            if self.writer is request:
                request.hands_over = True
                self._end_writing(request)
            elif not request.finished and request in self._waiting:
                self._waiting.remove(request)
            if self._syncer is request:
                request.hands_over = True
                self._syncer = None
                self._active += sum(each.durable for each in self._waiting)
            if request.hands_over and self.writer is None:
                self.writer = self._next()
            left = request.group
            while left and not left[-1].waits:
                left.pop()
            following = left[-1] if left else None
            if following is not None:
                following.group = left
        if request.hands_over:
            _release(self.writer)
        _release(following)
        request.group = []

    def _gather(self, leader: Request) -> None:
        """Wait for the next requests of those who shared the last sync, for as long as more of them arrive."""
        came = -1
        with self._lock:
            leader.lock = leader.lock or threading.Lock()
            leader.lock.acquire(blocking=False)
            self._wanted = min(self._active, MAX_GROUP) - (leader not in self._waiting)
        while came < len(self._waiting) < self._wanted:
            came = len(self._waiting)
            # The last one to arrive releases it.
            leader.lock.acquire(timeout=_NEXT_ARRIVAL)
        self._wanted = 0

    def _take(self, leader: Request) -> None:
        """Give the leader the requests of its turn: all that wait, or all that need no disk."""
        leader.waits, leader.group = False, [leader]
        if leader.durable:
            self._syncer, self._active = leader, 1
        if not self._waiting:
            return
        if leader.work is not None:
            followers = [each for each in self._waiting if each is not leader and each.work is not None]
            if not leader.durable:
                followers = [each for each in followers if not each.durable]
            leader.group += followers[: MAX_GROUP - 1]
        if leader.durable:
            self._active = sum(request.durable for request in leader.group)
        taken = set(map(id, leader.group))
        self._waiting = [each for each in self._waiting if id(each) not in taken]

    def _end_writing(self, leader: Request) -> None:
        if not self._waiting and len(leader.group) <= 1:
            self.writer = None
            return
        if leader in self._waiting:
            self._waiting.remove(leader)
        # What an interrupted leader left undone is done in the next turn.
        undone = [request for request in leader.group if request.waits and not request.finished]
        if undone:
            # A leader that was interrupted while it took them has left them in the list.
            self._waiting[:0] = [request for request in undone if request not in self._waiting]
            leader.group = [request for request in leader.group if request.finished]
        self.writer = self._next()

    def _next(self) -> Request | None:
        """Return the first request that needs the disk if the disk is free, else the first that does not."""
        if not self._waiting:
            return None
        if self._syncer is None:
            first = next((request for request in self._waiting if request.durable), None)
            if first is not None:
                return first
        return next((request for request in self._waiting if not request.durable), None)


def _release(request: Request | None) -> None:
    try:
        if request is not None and request.lock is not None:
            request.lock.release()
    except RuntimeError:
        # It is awake already, or an interrupted step is repeated.
        return


def run_many(
    connection: apsw.Connection | apsw.Cursor,
    statement: str,
    rows: Sequence[tuple[Any, ...]],
    behind: tuple[Any, ...] = (),
) -> list[Any]:
    """Run a statement, whose `(?…)` stands for each row, and return what it returns. `behind` are further arguments."""
    if len(rows) == 1:
        return connection.execute(statement, rows[0] + behind).fetchall()
    found: list[Any] = []
    start = 0
    while left := len(rows) - start:
        # Up to a usual batch at once, then powers of two, so that few forms of a statement have to be prepared.
        size = left if left <= _USUAL_ROWS else min(_MOST_ROWS, 1 << left.bit_length() - 1)
        arguments = (*chain.from_iterable(rows[start : start + size]), *behind)
        found += connection.execute(_with_rows(statement, size), arguments).fetchall()
        start += size
    return found


@lru_cache(maxsize=256)
def _with_rows(statement: str, size: int) -> str:
    begin, end = statement.index("(?"), statement.index("?)") + 2
    return ", ".join([statement[:end]] + [statement[begin:end]] * (size - 1)) + statement[end:]


def one(connection: apsw.Connection, statement: str, arguments: tuple[Any, ...] = ()) -> Any:
    """Return the first row, or None."""
    return connection.execute(statement, arguments).fetchone()


def every(connection: apsw.Connection | apsw.Cursor, statement: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
    """Return all rows."""
    return connection.execute(statement, arguments).fetchall()


def text_of(column: str | bytes | None) -> str | None:
    """Return the text of a column that was read as bytes; bytes that cannot be decoded are shown escaped."""
    return column.decode(errors="backslashreplace") if isinstance(column, bytes) else column


@lru_cache(maxsize=256)
def moment(us: int) -> datetime:
    """Return a stored wall-clock time; the end of time for one that is damaged."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
