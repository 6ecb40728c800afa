"""Whether a failed send is tried again, and when: decisions only."""

from __future__ import annotations

from dataclasses import dataclass

from postroad.bus.config import SQSEventBusConfig
from postroad.bus.local import Remote
from postroad.errors import CircuitOpenError, NotPermitted, OutcomeUnknown, TransportError


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Try again after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It failed for good."""

    remote: Remote


def decide(
    attempt: int, error: Exception, *, left: float, config: SQSEventBusConfig, chance: float
) -> RetryAfter | GiveUp:
    """What follows the failed attempt; `left` is the rest of the budget, `chance` a number from 0 to 1.

    A retry that could not start within the budget is not made.
    """
    remote: Remote = "unknown" if isinstance(error, OutcomeUnknown) else "failed"
    if attempt > config.publish_retries or not is_passing(error):
        return GiveUp(remote)
    pause = config.publish_retry_delay_seconds * 2 ** (attempt - 1) * (0.5 + chance / 2)
    return RetryAfter(pause) if pause < left else GiveUp(remote)


def is_passing(error: Exception) -> bool:
    """Whether the same send may go well another time."""
    return isinstance(error, TransportError) and not isinstance(error, NotPermitted | CircuitOpenError)
