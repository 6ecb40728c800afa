"""A provider that failed too often in a row is left alone: first for half a minute, at last for five."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from postroad.errors import ConfigurationError
from postroad.receiving import BreakerState, CircuitBreaker, CircuitBreakerConfig

_LONGEST_SECONDS: Final = 300.0
_REMEMBERED_CONNECTIONS: Final = 16
_FIELDS: Final = {"failure_threshold": "breaker_failures", "recovery_timeout_seconds": "breaker_seconds"}


class ProviderBreaker:
    """Counts a provider's failures in a row for all threads. When its time ends one push passes as a probe."""

    def __init__(
        self, *, failures: int = 5, seconds: float = 30.0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._circuit = CircuitBreaker(_config(failures, seconds), monotonic, longest=_LONGEST_SECONDS)
        self._lock = threading.Lock()
        self._lost_connections: deque[int] = deque(maxlen=_REMEMBERED_CONNECTIONS)

    @property
    def state(self) -> BreakerState:
        """Whether pushes pass, wait, or one passes as a probe."""
        return self._circuit.state

    def admit(self) -> float | None:
        """None when the push may be sent; else the seconds after which to ask again."""
        return self._circuit.admit()

    def pause(self) -> float:
        """How long until a probe may pass; 0 when pushes pass."""
        return self._circuit.pause()

    def succeeded(self) -> None:
        """The provider answered about a device: close."""
        self._circuit.succeeded()

    def failed(self, lost_connection: int | None = None) -> None:
        """The provider did not answer, is overloaded or knows us no more. A lost connection counts once."""
        with self._lock:
            counted = lost_connection in self._lost_connections
            if lost_connection is not None and not counted:
                self._lost_connections.append(lost_connection)
        (self._circuit.undecided if counted else self._circuit.failed)()

    def undecided(self) -> None:
        """The push was admitted and not sent: give its place back."""
        self._circuit.undecided()


class ProviderBreakers:
    """The breakers of all providers as the one of the receiver: pushes are received while one of them lets pass."""

    def __init__(self, breakers: Collection[ProviderBreaker]) -> None:
        self._breakers = breakers

    @property
    def state(self) -> BreakerState:
        """Closed while one is; else half open while one is, and single pushes pass as probes."""
        states = {breaker.state for breaker in self._breakers}
        return next(state for state in ("closed", "half_open", "open") if state in states)

    def pause(self) -> float:
        """Return how long until a probe may pass; 0 when pushes pass."""
        return min(breaker.pause() for breaker in self._breakers) if self.state == "open" else 0.0

    def succeeded(self) -> None:
        """What became of a message says nothing about one provider."""

    def failed(self) -> None:
        """What became of a message says nothing about one provider."""


def _config(failures: int, seconds: float) -> CircuitBreakerConfig:
    try:
        return CircuitBreakerConfig(failure_threshold=failures, recovery_timeout_seconds=seconds)
    except ConfigurationError as error:
        inner = error.field or ""
        field = _FIELDS.get(inner, inner)
        raise ConfigurationError(error.message.replace(inner, field), field=field) from None
