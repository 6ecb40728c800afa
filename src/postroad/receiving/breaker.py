"""A circuit breaker: after too many failures in a row it lets nothing through for a while, then a few probes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from postroad.arguments import Count, Seconds, check_settings

BreakerState = Literal["closed", "open", "half_open"]
_ASK_AGAIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreakerConfig:
    """When a breaker opens, and how it closes again."""

    failure_threshold: Count = 5
    """How many failures in a row open it."""
    recovery_timeout_seconds: Seconds = 30.0
    """How long it stays open before it lets probes through."""
    half_open_requests: Count = 1
    """How many probes may be under way at the same time; one that succeeds closes it, one that fails opens it again."""

    def __post_init__(self) -> None:
        check_settings(self)


class Breaker(Protocol):
    """What a receiver asks before it receives; the receiver reports the outcome of each message to it."""

    @property
    def state(self) -> BreakerState:
        """Whether messages pass, none pass, or single ones pass as probes."""
        ...

    def pause(self) -> float:
        """Return the seconds until a probe may pass; 0 when messages pass."""
        ...

    def succeeded(self) -> None:
        """A message was handled."""
        ...

    def failed(self) -> None:
        """A message was not handled, or none could be received."""
        ...


class CircuitBreaker:
    """Counts failures in a row.

    Args:
        config: When it opens, and how it closes again.
        monotonic: The clock, in seconds.
        longest: Each probe that fails doubles the time until the next one, up to this many seconds; by default that
            time stays the same.
    """

    def __init__(self, config: CircuitBreakerConfig, monotonic: Callable[[], float], *, longest: float = 0.0) -> None:
        self._config = config
        self._longest = longest
        self._recovery = 0.0
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at: float | None = None
        self._probes = 0

    @property
    def state(self) -> BreakerState:
        """Whether calls pass, are refused, or pass as probes."""
        with self._lock:
            return self._state()

    def admit(self) -> float | None:
        """Return None if the call may be made, else the seconds after which to ask again."""
        with self._lock:
            state = self._state()
            if state == "open":
                return self._left()
            if state == "half_open":
                if self._probes >= self._config.half_open_requests:
                    return min(_ASK_AGAIN, self._config.recovery_timeout_seconds)
                self._probes += 1
            return None

    def pause(self) -> float:
        """Return the seconds until a probe may pass; 0 when calls pass."""
        with self._lock:
            return self._left()

    def succeeded(self) -> None:
        """Close: a call succeeded."""
        with self._lock:
            self._failures, self._opened_at, self._probes = 0, None, 0

    def failed(self) -> None:
        """Count a failure; open if it is one too many, or if a probe failed."""
        with self._lock:
            self._failures += 1
            state, first = self._state(), self._config.recovery_timeout_seconds
            if state == "half_open":
                self._recovery = max(first, min(2 * self._recovery, self._longest))
            elif state == "closed" and self._failures >= self._config.failure_threshold:
                self._recovery = first
            else:
                return
            self._opened_at, self._probes = self._monotonic(), 0

    def undecided(self) -> None:
        """Allow another probe: this one showed nothing about the other side."""
        with self._lock:
            self._probes = max(0, self._probes - 1)

    def _state(self) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        return "open" if self._left() > 0 else "half_open"

    def _left(self) -> float:
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self._recovery - self._monotonic())
