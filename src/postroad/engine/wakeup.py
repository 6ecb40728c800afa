"""Wake-ups: at once in this process, by a datagram to the sockets of others, and by a slow check as a fallback."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

from postroad.errors import describe
from postroad.telemetry import get_logger, redact

CROWD: Final = 8
"""How many other processes are woken by a thread of its own instead of the writer."""
LISTING_LASTS: Final = 0.02
"""How many seconds a new listener may stay unknown to other processes."""
LOOK_EVERY: Final = 0.1
_ALL: Final = b"*"
_LONGEST_NAMES: Final = 4_000
_LONGEST_ADDRESS: Final = 104
_LONGEST_DATAGRAM: Final = 4_096


class WakeupSocket:
    """This process's socket in the directory that all processes of one file share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._out: socket.socket | None = None
        self._in: socket.socket | None = None
        self._poll = select.poll()
        self._descriptor: int | None = None
        self._prefix: str | None = None
        self._looked_at = 0.0
        self._others: tuple[str, ...] = ()
        self.forget_thread()

    def forget_thread(self) -> None:
        """Start without a sending thread, as a forked child has to."""
        self._lock = threading.Lock()
        self._unsent: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Make this process's socket, so that others can wake it. Opening it twice changes nothing."""
        if self._in is not None:
            return
        # Without a bound socket the slow check of the file still finds everything.
        with contextlib.suppress(OSError):
            self._in = _unix_socket()
            self._poll.register(self._in, select.POLLIN)
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._in.bind(self._address(self._name))

    def send(self, channels: bytes) -> None:
        """Send the names of the changed channels to every other process.

        To wake many takes long, so a thread does it, which spares the writer's processor.
        """
        if len(self.others()) < CROWD:
            self._send(channels)
            return
        try:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._send_all, name="postroad-wakeups", daemon=True)
                    thread.start()
                    self._thread = thread
        except RuntimeError:
            # No thread can be started, and the caller has committed: it must not fail.
            self._send(channels)
            return
        self._unsent.put(channels)

    def _send_all(self) -> None:
        while (channels := self._unsent.get()) is not None:
            self._send(channels)
        # Ctrl-C may have left a second thread behind when it interrupted the start of one.
        self._unsent.put(None)

    def _send(self, channels: bytes) -> None:
        for name in self.others():
            try:
                self._out = self._out or _unix_socket()
                self._out.sendto(channels[:_LONGEST_DATAGRAM], self._address(name))
            except ConnectionRefusedError:
                # Its process ended without closing the socket.
                with contextlib.suppress(OSError):
                    (self._directory / name).unlink()
            except OSError:
                # It is full or gone, or this process has no descriptor left: the slow check will find the change.
                continue

    def listen(self, timeout: float) -> set[bytes]:
        """Wait up to `timeout` seconds; return the channels that others have named."""
        channels: set[bytes] = set()
        if self._in is None:
            time.sleep(timeout)
        elif self._poll.poll(timeout * 1_000):
            with contextlib.suppress(BlockingIOError):
                while True:
                    channels.update(self._in.recv(_LONGEST_DATAGRAM).split(b"\n"))
        return channels

    def close(self) -> None:
        """Send what is left, then close and remove the socket."""
        self._unsent.put(None)
        if self._thread is not None:
            self._thread.join()
        if self._out is not None:
            self._out.close()
        if self._in is not None:
            self._in.close()
            with contextlib.suppress(OSError):
                (self._directory / self._name).unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def others(self) -> tuple[str, ...]:
        """Return the sockets of other processes; one that was made a moment ago may be missing."""
        now = time.monotonic()
        if now - self._looked_at > LISTING_LASTS:
            self._looked_at = now
            try:
                self._others = tuple(name for name in os.listdir(self._directory) if name != self._name)  # noqa: PTH208
            except OSError:
                self._others = ()
        return self._others

    def _address(self, name: str) -> str:
        if self._prefix is None:
            prefix = str(self._directory)
            if len(os.fsencode(prefix)) + 1 + len(self._name) >= _LONGEST_ADDRESS:
                # A socket's address holds about a hundred bytes; the directory's descriptor is a shorter way to it.
                self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                prefix = f"/proc/self/fd/{self._descriptor}"
            self._prefix = prefix
        return f"{self._prefix}/{name}"


def _unix_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


class Listener:
    """Waits until something has changed; a change that came before `wait` counts."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return whether it was woken."""
        return self._lock.acquire(timeout=max(timeout, 0.0))

    def wake(self) -> None:
        """Wake the thread that waits, or the next one that does."""
        try:
            self._lock.release()
        except RuntimeError:
            # Woken already: one wake-up is enough.
            return

    # A thread that waits has to look, whether or not something changed.
    wake_perhaps = wake


class Watch:
    """Calls back instead of waking a thread: with True when a channel was touched, with False when it may have been."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[bool], None]) -> None:
        self._call = call

    def wake(self) -> None:
        """Report that something changed."""
        self._report(True)

    def wake_perhaps(self) -> None:
        """Report that another process committed, which may have changed anything."""
        self._report(False)

    def _report(self, changed: bool) -> None:
        try:
            self._call(changed)
        except Exception as error:
            # The thread that reports has others to wake.
            get_logger("engine").warning("engine_watch_failed", error=redact(describe(error))[:500])


AnyListener = TypeVar("AnyListener", Listener, Watch)


class Listening(Generic[AnyListener]):
    """A listener for the time of a block."""

    __slots__ = ("_channels", "_listener", "_listeners")

    def __init__(self, listeners: Listeners, channels: Sequence[str], listener: AnyListener) -> None:
        self._listeners = listeners
        self._channels = channels
        self._listener: AnyListener = listener

    def __enter__(self) -> AnyListener:
        for channel in self._channels:
            self._listeners.add(channel, self._listener)
        return self._listener

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            self._listeners.remove(channel, self._listener)


class Listeners:
    """All listeners of this process. A file that is not `shared` has none in other processes."""

    def __init__(self, path: Path, version: Callable[[], int], *, shared: bool = True) -> None:
        self._shared = shared
        self._socket = WakeupSocket(path.with_name(f"{path.name}.wake"))
        self._version = version
        self._lock = threading.Lock()
        self._listeners: dict[str, dict[Listener | Watch, None]] = {}
        self._unsent: set[str] = set()
        self._has_listeners = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._news = 0
        self._known_from = math.inf if shared else -math.inf

    @property
    def news(self) -> int:
        """A number that grows whenever another process may have committed, even while nobody listens here."""
        if time.monotonic() < self._known_from:
            # Others do not wake this process yet, or its thread no longer listens.
            self._news += 1
        return self._news

    def listen(self, *channels: str) -> Listening[Listener]:
        """Return a listener of the channels for the time of a `with` block."""
        return Listening(self, channels, Listener())

    def watch(self, call: Callable[[bool], None], *channels: str) -> Listening[Watch]:
        """Call `call` for the time of a `with` block, on the thread that touches the channels."""
        return Listening(self, channels, Watch(call))

    def add(self, channel: str, listener: Listener | Watch) -> None:
        """Let the listener hear of the channel."""
        with self._lock:
            if not self._has_listeners.is_set():
                if self._thread is None and not self._closed and self._shared:
                    self._socket.open()
                    threading.Thread(target=self._run, name="postroad-listeners", daemon=True).start()
                if self._thread is not None:
                    # The thread pauses. What others sent meanwhile is no news to this listener, which looks by itself.
                    self._news += len(self._socket.listen(0.0))
                self._has_listeners.set()
            self._listeners.setdefault(channel, {})[listener] = None

    def remove(self, channel: str, listener: Listener | Watch) -> None:
        """Stop telling the listener of the channel."""
        with self._lock:
            listeners = self._listeners[channel]
            del listeners[listener]
            if not listeners:
                del self._listeners[channel]

    def wake(self, channels: Collection[str]) -> None:
        """Wake the listeners of the channels in this process, and note the channels for `wake_others`."""
        for channel in channels:
            for listener in tuple(self._listeners.get(channel, ())):
                listener.wake()
        with self._lock:
            self._unsent.update(channels)

    def wake_others(self) -> None:
        """Wake the listeners of the noted channels in other processes."""
        if self._unsent:
            with self._lock:
                channels, self._unsent = self._unsent, set()
            if not self._shared or not self._socket.others():
                return
            names = "\n".join(channels).encode()
            self._socket.send(names if len(names) <= _LONGEST_NAMES else _ALL)

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._closed = True
            self._known_from = math.inf
            self._has_listeners.set()
        for listener in self._everyone():
            listener.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._socket.close()

    def abandon(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self._closed = True
        self._known_from = math.inf
        self._thread = None
        self._socket.forget_thread()

    def _run(self) -> None:
        with self._lock:
            # Ctrl-C may interrupt `add` after it has started a thread; then the next `add` starts another one.
            if self._closed or self._thread is not None:
                return
            self._thread = threading.current_thread()
        self._known_from = time.monotonic() + 2 * LISTING_LASTS
        try:
            self._wake_by_others()
        finally:
            self._known_from = math.inf

    def _wake_by_others(self) -> None:
        seen: int | None = None
        looked_at = 0.0
        while not self._closed:
            with self._lock:
                if not self._listeners and not self._closed:
                    self._has_listeners.clear()
            self._has_listeners.wait()
            named = self._socket.listen(LOOK_EVERY)
            self._news += len(named)
            if _ALL in named:
                for listener in self._everyone():
                    listener.wake()
            for name in named:
                for listener in tuple(self._listeners.get(name.decode(errors="replace"), ())):
                    listener.wake()
            # However many datagrams arrive: one for this process may have been lost among them.
            if time.monotonic() - looked_at >= LOOK_EVERY:
                looked_at = time.monotonic()
                if (version := self._version()) != seen:
                    seen = version
                    self._news += 1
                    for listener in self._everyone():
                        listener.wake_perhaps()

    def _everyone(self) -> list[Listener | Watch]:
        with self._lock:
            return [listener for listeners in self._listeners.values() for listener in listeners]
