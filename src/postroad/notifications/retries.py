"""When a push is tried again, waits for its provider, or is given up, and when a provider is left alone."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from postroad.errors import ConfigurationError
from postroad.notifications.devices import Platform, TokenResult
from postroad.notifications.push import Attempt
from postroad.receiving import Ack, BreakerState, CircuitBreaker, CircuitBreakerConfig, Defer, Outcome, Reject, Retry

_LEAST_DELAY, _MOST_DELAY = 1.0, 900.0
_MOST_RELEASE = 43_200.0
_STALE_BEFORE_END = 3_600.0
# Where there are no dead letters a rejected message stays in the queue: nothing is deleted unseen.
_NOT_REJECTED_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a message is tried, and how long it rests in between."""

    delays: tuple[float, ...]
    max_receives: int | None
    """After how many receives the queue itself gives a message up."""
    retention: float
    """How long the queue keeps a message."""

    def is_last(self, receive_count: int) -> bool:
        """Whether the message must not be tried again after this."""
        return receive_count >= min(self.max_receives or len(self.delays) + 1, len(self.delays) + 1)

    def pause(self, receive_count: int, chance: float, asked: float = 0.0) -> float:
        """The seconds before the next try, more or less by a fifth; what the provider asked for when that is more."""
        delay = self.delays[min(receive_count, len(self.delays)) - 1] if self.delays else 0.0
        return min(max(delay * (0.8 + 0.4 * chance), asked), _MOST_RELEASE)

    def is_stale(self, made_at: datetime, now: datetime) -> bool:
        """Whether a push has waited so long that it should not wait any more."""
        most = max(self.retention - _STALE_BEFORE_END, self.retention / 2)
        return (now - made_at).total_seconds() > most


def rejected(reason: str, error: str) -> Reject:
    """Return the outcome of a message that is given up."""
    return Reject(reason, error, after=_NOT_REJECTED_SECONDS)


def decide_push(
    attempt: Attempt, retries: RetryPolicy, *, receive_count: int, made_at: datetime, now: datetime, chance: float
) -> Outcome:
    """Decide by what is still open: waiting for a provider, refused for good, or to be tried again."""
    if attempt.untried:
        return Retry(0.0, "WorkerStopped: the worker stops", label="interrupted")
    waits = list(attempt.waits)
    if any(result.outcome == "auth" for _, result in attempt.failures):
        # Our own key, account or topic is at fault: the push waits for its mending, and no receive is used up.
        waits.append(retries.pause(1, chance))
    if waits:
        if retries.is_stale(made_at, now):
            return rejected("stale", f"PushStale: waited for its provider too long, {_open(attempt)}")
        return Defer(min(max(*waits, _LEAST_DELAY), _MOST_DELAY))
    # Not before: where one device is refused for good the others get their push first.
    permanent = [each for each in attempt.failures if each[1].outcome == "permanent"]
    if permanent:
        return rejected("permanent", _said(permanent, attempt))
    if not attempt.failures:
        return Ack(label="pushed")
    if retries.is_last(receive_count):
        return rejected("retries_exhausted", _said(attempt.failures, attempt))
    asked = max(result.retry_after or 0.0 for _, result in attempt.failures)
    return Retry(retries.pause(receive_count, chance, asked), _said(attempt.failures, attempt))


def _said(failures: list[tuple[Platform, TokenResult]], attempt: Attempt) -> str:
    platform, result = failures[0]
    status = "gave no answer" if result.status is None else f"answered {result.status}"
    return f"PushFailed: {platform} {status} ({result.reason or result.outcome}), {_open(attempt)}"


def _open(attempt: Attempt) -> str:
    count = len(attempt.failures) + len(attempt.waits) + attempt.untried
    return f"{count} token{'' if count == 1 else 's'} open"


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
