"""Group commit: one send is in flight, and what arrives meanwhile goes out together with the next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from postroad.errors import InvalidInput, OutcomeUnknown, Unavailable
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
    """Sends on a thread of its own, so that no caller waits longer than it wants to. There is no timer."""

    def __init__(self, send: Send, *, most: int = MOST) -> None:
        self._send = send
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._running = False
        self._closed = False

    def send(self, messages: Sequence[OutgoingMessage], *, timeout: float) -> list[SendResult]:
        """The outcome of each message: what did not get on its way in time surely was not sent and never will be."""
        call = _Call(len(messages))
        entries = [_Entry(message, call) for message in messages]
        with self._changed:
            if self._closed:
                return [_failed(Unavailable("the bus is closed", remedy="Make another bus.")) for _ in entries]
            self._waiting.extend(entries)
            self._start()
            self._changed.notify()
        call.done.wait(max(0.0, timeout))
        return self._outcomes(entries)

    def close(self) -> None:
        """Send what waits, then stop; later sends fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _start(self) -> None:
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
                for entry, result in zip(batch, results, strict=True):
                    entry.state, entry.result = "done", result
                    entry.call.left -= 1
                    if not entry.call.left:
                        entry.call.done.set()

    def _take(self) -> list[_Entry]:
        """The next entries; none when there was nothing to do for a while, and the thread ends."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait(_IDLE_SECONDS)
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            for entry in batch:
                entry.state = "in flight"
            self._running = bool(batch)
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
