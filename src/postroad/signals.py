"""SIGTERM and Ctrl-C: heard from the first moment of a command to its last, and handed to whoever runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers
_STOPPING = (signal.SIGTERM, signal.SIGINT)


class _Held:
    """Keeps a signal for the next handler; a second one acts as if it had not been kept."""

    def __init__(self, before: _Handler) -> None:
        self.before = before
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            signal.signal(number, self.before)
            signal.raise_signal(number)
        self.came = True


def hold() -> None:
    """Keep SIGTERM and Ctrl-C until the command that runs handles them, or `release` gives up waiting for it."""
    for number in _STOPPING:
        signal.signal(number, _Held(_handler(number)))


def release() -> None:
    """Let SIGTERM and Ctrl-C act as usual again, those that were held included."""
    for number in _STOPPING:
        held = _handler(number)
        if isinstance(held, _Held):
            signal.signal(number, held.before)
            if held.came:
                signal.raise_signal(number)


@contextmanager
def handled_by(handlers: Mapping[signal.Signals, _Handler]) -> Iterator[None]:
    """Handle signals inside the block, and those that were held at once; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: _handler(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, held in before.items():
            if isinstance(held, _Held) and held.came:
                held.came = False
                signal.raise_signal(number)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second one ends the program as usual."""
    stop = threading.Event()
    usual = {number: _usual(number) for number in _STOPPING}

    def tell(number: int, _: FrameType | None) -> None:
        signal.signal(number, usual[signal.Signals(number)])
        stop.set()

    with handled_by(dict.fromkeys(_STOPPING, tell)):
        yield stop


@contextmanager
def stopped_by_sigterm(stopping: threading.Event) -> Iterator[None]:
    """Let SIGTERM set the event inside the block, unless the program has a handler of its own for it."""
    if _handler(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    with handled_by({signal.SIGTERM: lambda *_: stopping.set()}):
        yield


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM interrupt as Ctrl-C does, so that what is held is handed back and the end is recorded."""
    with handled_by({signal.SIGTERM: signal.default_int_handler}):
        yield


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the program with exit code 0, and Ctrl-C interrupt it as usual, also while it opens things."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(0)

    with handled_by({signal.SIGTERM: end, signal.SIGINT: _usual(signal.SIGINT)}):
        yield


@contextmanager
def heard_by(heard: Callable[[], None]) -> Iterator[None]:
    """Call `heard` on every SIGTERM and Ctrl-C inside the block."""
    with handled_by(dict.fromkeys(_STOPPING, lambda *_: heard())):
        yield


def was_held(handler: object) -> bool:
    """Whether this handler, which another one has replaced, holds a signal that nobody has handled."""
    return isinstance(handler, _Held) and handler.came


def _handler(number: signal.Signals) -> _Handler:
    """What handles the signal now; a handler that Python does not know counts as the default."""
    handler = signal.getsignal(number)
    return signal.SIG_DFL if handler is None else handler


def _usual(number: signal.Signals) -> _Handler:
    handler = _handler(number)
    return handler.before if isinstance(handler, _Held) else handler
