"""Waking receivers that wait in other processes: a datagram to each one's socket beside the file."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Final

_LONGEST_ADDRESS: Final = 104
_LONGEST_DATAGRAM: Final = 4_096
LISTING_LASTS: Final = 0.02
"""How long somebody who came may stay unknown to those who send."""


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

    def open(self) -> None:
        """Make this process's socket, so that others can wake us. Opening it twice changes nothing."""
        if self._in is not None:
            return
        # Without a bound socket the slow look at the file still finds everything.
        with contextlib.suppress(OSError):
            self._in = _unix_socket()
            self._poll.register(self._in, select.POLLIN)
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._in.bind(self._address(self._name))

    def send(self, channels: bytes) -> None:
        """Tell every other process which channels changed."""
        for name in self.listeners():
            try:
                self._out = self._out or _unix_socket()
                self._out.sendto(channels[:_LONGEST_DATAGRAM], self._address(name))
            except ConnectionRefusedError:
                # Its process is gone without a farewell.
                with contextlib.suppress(OSError):
                    (self._directory / name).unlink()
            except OSError:
                # Full, or no descriptor is free here: its slow look will find this. Missing: it left.
                continue

    def listen(self, timeout: float) -> set[bytes]:
        """The channels named since the last look; none when the time is over."""
        channels: set[bytes] = set()
        if self._in is None:
            time.sleep(timeout)
        elif self._poll.poll(timeout * 1_000):
            with contextlib.suppress(BlockingIOError):
                while True:
                    channels.update(self._in.recv(_LONGEST_DATAGRAM).split(b"\n"))
        return channels

    def close(self) -> None:
        """Take the socket away."""
        if self._out is not None:
            self._out.close()
        if self._in is not None:
            self._in.close()
            with contextlib.suppress(OSError):
                (self._directory / self._name).unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def listeners(self) -> tuple[str, ...]:
        """Who else listens. Somebody who came a moment ago is found by the slow look at the file meanwhile."""
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
            self._prefix = self._short_prefix()
        return f"{self._prefix}/{name}"

    def _short_prefix(self) -> str:
        direct = str(self._directory)
        if len(os.fsencode(direct)) + 1 + len(self._name) < _LONGEST_ADDRESS:
            return direct
        # A socket's address holds about a hundred bytes; the directory's descriptor is a shorter way to it.
        self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._descriptor}"


def _unix_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


CROWD: Final = 8


class BackgroundSender:
    """Wakes a few processes at once, and many on a thread of its own: the writer's processor is not spent on it."""

    def __init__(self, wakeups: WakeupSocket) -> None:
        self._socket = wakeups
        self._lock = threading.Lock()
        self._unsent: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, channels: bytes) -> None:
        """Tell the other processes which channels changed, now or in a moment."""
        if len(self._socket.listeners()) < CROWD:
            self._socket.send(channels)
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="postroad-wakeups", daemon=True)
                self._thread.start()
        self._unsent.put(channels)

    def close(self) -> None:
        """Send what is left, and end."""
        self._unsent.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (channels := self._unsent.get()) is not None:
            self._socket.send(channels)
