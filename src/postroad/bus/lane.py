"""Group commit: one send is in flight, and what arrives meanwhile goes out together with the next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from postroad.errors import ConfigurationError, InvalidInput, OutcomeUnknown, Unavailable
from postroad.queues import OutgoingMessage, SendResult

Send = Callable[[Sequence[OutgoingMessage]], list[SendResult]]

MOST = 10
_IDLE_SECONDS = 5.0


class _Entry:
    """A message on its way, and the caller who waits for it."""

    __slots__ = ("call", "message", "result", "state")

    def __init__(self, message: OutgoingMessage, call: _Call) -> None:
        self.message = message
        self.call = call
        self.state: Literal["waiting", "in flight", "done"] = "waiting"
        self.result: SendResult | None = None


class _Call:
    """One caller, woken when all of its entries are done."""

    __slots__ = ("done", "left")

    def __init__(self, entries: int) -> None:
        self.left = entries
        self.done = threading.Event()


class Lane:
    """One send at a time, without a timer, and no caller waits longer than it wants to.

    A caller who finds the lane free sends on its own thread where the transport answers within `longest` seconds and it
    can wait for that long; all others are served by the lane's thread. With `longest=0` every caller sends for itself:
    the transport groups commits of its own, and a send joins its caller's transaction.
    """

    def __init__(self, send: Send, *, most: int = MOST, longest: float | None = None) -> None:
        self._send = send
        self._most = most
        self._longest = longest
        self._in_flight = False
        self._changed = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._running = False
        self._closed = False

    def send(self, messages: Sequence[OutgoingMessage], *, timeout: float) -> list[SendResult]:
        """The outcome of each message: what did not get on its way in time surely was not sent and never will be."""
        if self._closed:
            return [_failed(ConfigurationError("the bus is closed", remedy="Make another bus.")) for _ in messages]
        if self._longest == 0:
            return self._sent(messages)
        call = _Call(len(messages))
        entries = [_Entry(message, call) for message in messages]
        with self._changed:
            leads = self._may_lead(len(messages), timeout)
            if leads:
                self._in_flight = True
            else:
                self._waiting.extend(entries)
                self._start()
        if leads:
            return self._lead(messages)
        call.done.wait(max(0.0, timeout))
        return self._outcomes(entries)

    def _may_lead(self, entries: int, timeout: float) -> bool:
        free = not self._in_flight and not self._waiting and entries <= self._most
        return free and self._longest is not None and self._longest <= timeout

    def _lead(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        try:
            return self._sent(messages)
        finally:
            with self._changed:
                self._in_flight = False
                if self._waiting:
                    self._start()

    def close(self) -> None:
        """Send what waits, then stop; later sends fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _start(self) -> None:
        """Let the lane's thread take what waits."""
        self._changed.notify_all()
        if not self._running:
            self._running = True
            threading.Thread(target=self._run, name="postroad-publish", daemon=True).start()

    def _outcomes(self, entries: Sequence[_Entry]) -> list[SendResult]:
        with self._changed:
            late = {id(entry) for entry in entries if entry.state == "waiting"}
            if late:
                self._waiting = deque(entry for entry in self._waiting if id(entry) not in late)
            return [self._outcome(entry) for entry in entries]

    def _outcome(self, entry: _Entry) -> SendResult:
        if entry.result is not None:
            return entry.result
        if entry.state == "waiting":
            return _failed(Unavailable("not sent: there was no turn for it in time"))
        return _failed(OutcomeUnknown("no answer in time; the message may have been sent"))

    def _run(self) -> None:
        while batch := self._take():
            results = self._sent([entry.message for entry in batch])
            with self._changed:
                self._in_flight = False
                for entry, result in zip(batch, results, strict=True):
                    entry.state, entry.result = "done", result
                    entry.call.left -= 1
                    if not entry.call.left:
                        entry.call.done.set()

    def _take(self) -> list[_Entry]:
        """The next entries; none when there was nothing to do for a while, and the thread ends."""
        with self._changed:
            self._changed.wait_for(lambda: (self._waiting or self._closed) and not self._in_flight, _IDLE_SECONDS)
            free = 0 if self._in_flight else min(self._most, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(free)]
            for entry in batch:
                entry.state = "in flight"
            # Whoever leads meanwhile starts the thread anew for what waits behind it.
            self._running = bool(batch)
            self._in_flight = self._in_flight or self._running
            return batch

    def _sent(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        try:
            return self._send(messages)
        except InvalidInput as error:
            if len(messages) == 1:
                return [_failed(error)]
            # The whole call was refused for one of them: each goes alone.
            return [result for message in messages for result in self._sent([message])]
        except Exception as error:
            return [_failed(error) for _ in messages]


def _failed(error: Exception) -> SendResult:
    return SendResult(ok=False, error=error)
