"""Listening for changes: woken at once in this process, by a datagram from others, and by a slow look as a fallback."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from postroad.connections.ringer import Ringer
from postroad.connections.wakeup import LISTING_LASTS, Doorbell

LOOK_EVERY: Final = 0.1
_ALL: Final = b"*"
_LONGEST: Final = 4_000


class Ear:
    """Hears that something changed; what was rung before `wait` counts."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout: float) -> bool:
        """Wait until rung; False when the time is over."""
        return self._lock.acquire(timeout=max(timeout, 0.0))

    def ring(self) -> None:
        """Wake whoever waits, or the next one that does."""
        try:
            self._lock.release()
        except RuntimeError:
            # Rung already: one wake-up is enough.
            return

    # Somebody who waits has to look, whether or not something changed.
    ring_perhaps = ring


class Watch:
    """Calls back instead of waking a thread: with True when a channel was rung, with False when it may have been."""

    __slots__ = ("_rung",)

    def __init__(self, rung: Callable[[bool], None]) -> None:
        self._rung = rung

    def ring(self) -> None:
        """Say that something changed."""
        self._rung(True)

    def ring_perhaps(self) -> None:
        """Say that another process committed something, which may be anything."""
        self._rung(False)


Heard = TypeVar("Heard", Ear, Watch)


class Listening(Generic[Heard]):
    """An ear for the time of a block."""

    __slots__ = ("_channels", "_ear", "_ears")

    def __init__(self, ears: Ears, channels: Sequence[str], ear: Heard) -> None:
        self._ears = ears
        self._channels = channels
        self._ear: Heard = ear

    def __enter__(self) -> Heard:
        for channel in self._channels:
            self._ears.add(channel, self._ear)
        return self._ear

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            self._ears.remove(channel, self._ear)


class Ears:
    """All that listen in this process. A file that is not `shared` has nobody in other processes."""

    def __init__(self, path: Path, version: Callable[[], int], *, shared: bool = True) -> None:
        self._shared = shared
        self._doorbell = Doorbell(path.with_name(f"{path.name}.wake"))
        self._ringer = Ringer(self._doorbell)
        self._version = version
        self._lock = threading.Lock()
        self._ears: dict[str, dict[Ear | Watch, None]] = {}
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
            # Others do not ring for us yet, or nobody hears them any more.
            self._news += 1
        return self._news

    def listen(self, *channels: str) -> Listening[Ear]:
        """An ear on the channels for the time of a `with` block."""
        return Listening(self, channels, Ear())

    def watch(self, rung: Callable[[bool], None], *channels: str) -> Listening[Watch]:
        """Call `rung` for the time of a `with` block, on whatever thread rings the channels."""
        return Listening(self, channels, Watch(rung))

    def add(self, channel: str, ear: Ear | Watch) -> None:
        """Let the ear hear the channel."""
        with self._lock:
            if not self._someone.is_set():
                self._start()
                self._someone.set()
            self._ears.setdefault(channel, {})[ear] = None

    def remove(self, channel: str, ear: Ear | Watch) -> None:
        """Let the ear hear nothing more."""
        with self._lock:
            ears = self._ears[channel]
            del ears[ear]
            if not ears:
                del self._ears[channel]

    def ring(self, channels: Collection[str]) -> None:
        """Wake those who listen to the channels in this process, and note them for `ring_others`."""
        for channel in channels:
            for ear in tuple(self._ears.get(channel, ())):
                ear.ring()
        with self._lock:
            self._unheard.update(channels)

    def ring_others(self) -> None:
        """Wake those who listen in other processes to what was rung here."""
        if self._unheard:
            with self._lock:
                channels, self._unheard = self._unheard, set()
            if not self._shared:
                return
            names = "\n".join(channels).encode()
            self._ringer.ring(names if len(names) <= _LONGEST else _ALL)

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._closed = True
            self._known_from = math.inf
            self._someone.set()
        self._ring_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._ringer.close()
        self._doorbell.close()

    def abandon(self) -> None:
        """Forget the thread, which a forked child does not have."""
        self._closed = True
        self._known_from = math.inf
        self._thread = None
        self._ringer = Ringer(self._doorbell)

    def _start(self) -> None:
        if self._thread is None and not self._closed and self._shared:
            self._doorbell.hang()
            thread = threading.Thread(target=self._run, name="postroad-ears", daemon=True)
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
            rung = self._doorbell.listen(LOOK_EVERY)
            self._news += len(rung)
            if _ALL in rung:
                self._ring_all()
            for name in rung:
                for ear in tuple(self._ears.get(name.decode(errors="replace"), ())):
                    ear.ring()
            # However often others are rung for: a bell for us may have been lost among them.
            if time.monotonic() - looked_at >= LOOK_EVERY:
                looked_at = time.monotonic()
                if (version := self._version()) != seen:
                    seen = version
                    self._news += 1
                    for ear in self._everyone():
                        ear.ring_perhaps()

    def _rest_while_nobody_listens(self) -> None:
        with self._lock:
            if not self._ears and not self._closed:
                self._someone.clear()
        self._someone.wait()

    def _ring_all(self) -> None:
        for ear in self._everyone():
            ear.ring()

    def _everyone(self) -> list[Ear | Watch]:
        with self._lock:
            return [ear for ears in self._ears.values() for ear in ears]
