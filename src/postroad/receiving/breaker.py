"""A circuit breaker: after too many failures in a row it lets nothing through for a while, then a few probes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from postroad.errors import ConfigurationError

BreakerState = Literal["closed", "open", "half_open"]
_ASK_AGAIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreakerConfig:
    """When a breaker opens, and how it closes again."""

    failure_threshold: int = 5
    recovery_timeout_seconds: float = 30.0
    half_open_requests: int = 1

    def __post_init__(self) -> None:
        for name in ("failure_threshold", "half_open_requests"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name}: {value!r} is not a whole number of 1 or more", field=name)
        seconds: object = self.recovery_timeout_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            name = "recovery_timeout_seconds"
            raise ConfigurationError(f"{name}: {seconds!r} is not a number of seconds of 0 or more", field=name)


class Breaker(Protocol):
    """What a receiver asks before it receives, and tells what became of messages."""

    @property
    def state(self) -> BreakerState:
        """Whether messages pass, none pass, or one passes as a probe."""
        ...

    def pause(self) -> float:
        """Return how long until a probe may pass; 0 when messages pass."""
        ...

    def succeeded(self) -> None:
        """A message was handled."""
        ...

    def failed(self) -> None:
        """A message was not handled, or none could be received."""
        ...


class CircuitBreaker:
    """Counts failures in a row. Without a config it is always closed.

    Each probe that fails doubles the time until the next one, up to `longest` seconds; without it that time stays.
    """

    def __init__(
        self, config: CircuitBreakerConfig | None, monotonic: Callable[[], float], *, longest: float = 0.0
    ) -> None:
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
        """None when the call may be made; else the seconds after which to ask again."""
        if self._config is None:
            return None
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
        """How long until a probe may pass; 0 when calls pass."""
        with self._lock:
            return self._left() if self._state() == "open" else 0.0

    def succeeded(self) -> None:
        """Close: a call went well."""
        with self._lock:
            self._failures, self._opened_at, self._probes = 0, None, 0

    def failed(self) -> None:
        """Count a failure; open when it is one too many, or when a probe failed."""
        if self._config is None:
            return
        with self._lock:
            self._failures += 1
            probing = self._opened_at is not None and self._state() == "half_open"
            if probing or (self._opened_at is None and self._failures >= self._config.failure_threshold):
                self._recovery = self._next_recovery(self._config, probing=probing)
                self._opened_at, self._probes = self._monotonic(), 0

    def undecided(self) -> None:
        """Give a probe's place back: its call said nothing about the other side."""
        with self._lock:
            self._probes = max(0, self._probes - 1)

    def _state(self) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        return "open" if self._left() > 0 else "half_open"

    def _next_recovery(self, config: CircuitBreakerConfig, *, probing: bool) -> float:
        first = config.recovery_timeout_seconds
        return max(first, min(2 * self._recovery, self._longest)) if probing else first

    def _left(self) -> float:
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self._recovery - self._monotonic())
