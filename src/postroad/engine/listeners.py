"""Listening for changes: woken at once in this process, by a datagram from others, and by a slow look as a fallback."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from postroad.engine.wakeup import LISTING_LASTS, BackgroundSender, WakeupSocket

LOOK_EVERY: Final = 0.1
_ALL: Final = b"*"
_LONGEST: Final = 4_000


class Listener:
    """Hears that something changed; what came before `wait` counts."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float) -> bool:
        """Wait until woken; False when the time is over."""
        return self._lock.acquire(timeout=max(timeout, 0.0))

    def wake(self) -> None:
        """Wake whoever waits, or the next one that does."""
        try:
            self._lock.release()
        except RuntimeError:
            # Woken already: one wake-up is enough.
            return

    # Somebody who waits has to look, whether or not something changed.
    wake_perhaps = wake


class Watch:
    """Calls back instead of waking a thread: with True when a channel was touched, with False when it may have been."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[bool], None]) -> None:
        self._call = call

    def wake(self) -> None:
        """Say that something changed."""
        self._call(True)

    def wake_perhaps(self) -> None:
        """Say that another process committed something, which may be anything."""
        self._call(False)


Heard = TypeVar("Heard", Listener, Watch)


class Listening(Generic[Heard]):
    """A listener for the time of a block."""

    __slots__ = ("_channels", "_listener", "_listeners")

    def __init__(self, listeners: Listeners, channels: Sequence[str], listener: Heard) -> None:
        self._listeners = listeners
        self._channels = channels
        self._listener: Heard = listener

    def __enter__(self) -> Heard:
        for channel in self._channels:
            self._listeners.add(channel, self._listener)
        return self._listener

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            self._listeners.remove(channel, self._listener)


class Listeners:
    """All that listen in this process. A file that is not `shared` has nobody in other processes."""

    def __init__(self, path: Path, version: Callable[[], int], *, shared: bool = True) -> None:
        self._shared = shared
        self._socket = WakeupSocket(path.with_name(f"{path.name}.wake"))
        self._sender = BackgroundSender(self._socket)
        self._version = version
        self._lock = threading.Lock()
        self._listeners: dict[str, dict[Listener | Watch, None]] = {}
        self._unheard: set[str] = set()
        self._someone = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._news = 0
        self._known_from = math.inf if shared else -math.inf

    @property
    def news(self) -> int:
        """Grows whenever another process may have committed, whether or not anybody here listened."""
        if time.monotonic() < self._known_from:
            # Others do not wake us yet, or nobody hears them any more.
            self._news += 1
        return self._news

    def listen(self, *channels: str) -> Listening[Listener]:
        """A listener on the channels for the time of a `with` block."""
        return Listening(self, channels, Listener())

    def watch(self, call: Callable[[bool], None], *channels: str) -> Listening[Watch]:
        """Call `call` for the time of a `with` block, on whatever thread touches the channels."""
        return Listening(self, channels, Watch(call))

    def add(self, channel: str, listener: Listener | Watch) -> None:
        """Let the listener hear the channel."""
        with self._lock:
            if not self._someone.is_set():
                self._start()
                self._someone.set()
            self._listeners.setdefault(channel, {})[listener] = None

    def remove(self, channel: str, listener: Listener | Watch) -> None:
        """Let the listener hear nothing more."""
        with self._lock:
            listeners = self._listeners[channel]
            del listeners[listener]
            if not listeners:
                del self._listeners[channel]

    def wake(self, channels: Collection[str]) -> None:
        """Wake those who listen to the channels in this process, and note them for `wake_others`."""
        for channel in channels:
            for listener in tuple(self._listeners.get(channel, ())):
                listener.wake()
        with self._lock:
            self._unheard.update(channels)

    def wake_others(self) -> None:
        """Wake those who listen in other processes to what was touched here."""
        if self._unheard:
            with self._lock:
                channels, self._unheard = self._unheard, set()
            if not self._shared:
                return
            names = "\n".join(channels).encode()
            self._sender.send(names if len(names) <= _LONGEST else _ALL)

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._closed = True
            self._known_from = math.inf
            self._someone.set()
        self._ring_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._sender.close()
        self._socket.close()

    def abandon(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self._closed = True
        self._known_from = math.inf
        self._thread = None
        self._sender = BackgroundSender(self._socket)

    def _start(self) -> None:
        if self._thread is None and not self._closed and self._shared:
            self._socket.open()
            thread = threading.Thread(target=self._run, name="postroad-listeners", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        self._known_from = time.monotonic() + 2 * LISTING_LASTS
        try:
            self._hear()
        finally:
            self._known_from = math.inf

    def _hear(self) -> None:
        seen: int | None = None
        looked_at = 0.0
        while not self._closed:
            self._rest_while_nobody_listens()
            named = self._socket.listen(LOOK_EVERY)
            self._news += len(named)
            if _ALL in named:
                self._ring_all()
            for name in named:
                for listener in tuple(self._listeners.get(name.decode(errors="replace"), ())):
                    listener.wake()
            # However often others are woken: a datagram for us may have been lost among them.
            if time.monotonic() - looked_at >= LOOK_EVERY:
                looked_at = time.monotonic()
                if (version := self._version()) != seen:
                    seen = version
                    self._news += 1
                    for listener in self._everyone():
                        listener.wake_perhaps()

    def _rest_while_nobody_listens(self) -> None:
        with self._lock:
            if not self._listeners and not self._closed:
                self._someone.clear()
        self._someone.wait()

    def _ring_all(self) -> None:
        for listener in self._everyone():
            listener.wake()

    def _everyone(self) -> list[Listener | Watch]:
        with self._lock:
            return [listener for listeners in self._listeners.values() for listener in listeners]
