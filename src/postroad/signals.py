"""SIGTERM and Ctrl-C: kept from the first moment of a command until the code that runs handles them."""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import FrameType

_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


class _Held:
    """Keeps a signal for the next handler; a second signal acts as usual."""

    def __init__(self, before: _Handler) -> None:
        self.before = before
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            signal.signal(number, self.before)
            signal.raise_signal(number)
        self.came = True


def hold() -> None:
    """Keep SIGTERM and Ctrl-C until the command handles them or `release` is called."""
    for number in _STOPPING:
        signal.signal(number, _Held(_handler(number)))


def release() -> None:
    """Let SIGTERM and Ctrl-C act as usual again, including those that were kept."""
    for number in _STOPPING:
        held = _handler(number)
        if isinstance(held, _Held):
            signal.signal(number, held.before)
            if held.came:
                signal.raise_signal(number)


@contextmanager
def handled_by(handlers: Mapping[signal.Signals, _Handler]) -> Iterator[None]:
    """Handle signals inside the block, those that were kept at once. In other threads this does nothing."""
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
    """Yield an event that SIGTERM and Ctrl-C set; a second signal acts as usual."""
    stop = threading.Event()
    usual = {number: _usual(number) for number in _STOPPING}

    def set_event(number: int, _: FrameType | None) -> None:
        signal.signal(number, usual[signal.Signals(number)])
        _call_apart(stop.set)

    with handled_by(dict.fromkeys(_STOPPING, set_event)):
        yield stop


def stopped_by_sigterm(stopping: threading.Event) -> AbstractContextManager[None]:
    """Let SIGTERM set the event inside the block, unless the program handles SIGTERM itself."""
    is_ours = _handler(signal.SIGTERM) is signal.SIG_DFL
    return handled_by({signal.SIGTERM: lambda *_: _call_apart(stopping.set)} if is_ours else {})


def interrupted_by_sigterm() -> AbstractContextManager[None]:
    """Let SIGTERM interrupt as Ctrl-C does, so that leases are released and the end is recorded."""
    return handled_by({signal.SIGTERM: signal.default_int_handler})


def ended_by_sigterm() -> AbstractContextManager[None]:
    """Let SIGTERM end the program with exit code 0, and Ctrl-C interrupt it as usual."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(0)

    return handled_by({signal.SIGTERM: end, signal.SIGINT: _usual(signal.SIGINT)})


def heard_by(heard: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `heard`, on a thread of its own, on every SIGTERM and Ctrl-C inside the block."""
    return handled_by(dict.fromkeys(_STOPPING, lambda *_: _call_apart(heard)))


def was_held(handler: object) -> bool:
    """Return whether this handler, which was replaced, keeps a signal that was not handled."""
    return isinstance(handler, _Held) and handler.came


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when `parent` dies; exit if it is dead already. Call this first."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process that only Linux has; do nothing elsewhere."""
    if sys.platform == "linux":
        _libc().prctl(option, value, 0, 0, 0)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _call_apart(call: Callable[[], object]) -> None:
    """Call it on a thread of its own.

    A handler of a signal runs between any two steps of the main thread, which may hold the very lock that the call
    needs, as it does for a moment in each `Event.wait`: the process would hang, and never stop.
    """
    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:
        # No thread can be started: most likely the lock is free.
        call()


def _handler(number: signal.Signals) -> _Handler:
    """Return what handles the signal now; a handler that Python does not know counts as the default."""
    handler = signal.getsignal(number)
    return signal.SIG_DFL if handler is None else handler


def _usual(number: signal.Signals) -> _Handler:
    handler = _handler(number)
    return handler.before if isinstance(handler, _Held) else handler
