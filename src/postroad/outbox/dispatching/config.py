"""How a dispatcher claims, publishes and retries, checked when it is written down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from postroad.errors import ConfigurationError

Policy = Literal["block", "park", "skip"]
_POLICIES = ("block", "park", "skip")
_MOST_SECONDS = 31_536_000.0
_COUNTS = {"batch": 1_000, "concurrency": 1_000, "retry_max": 1_000_000, "publish_batch": 1_000}


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """The settings of one dispatcher; the defaults are those of the seed."""

    batch: int = 50
    """Rows that one claim takes at the most."""
    concurrency: int = 10
    backoff: tuple[float, ...] = (1, 5, 30, 120, 600, 3600)
    retry_max: int = 10
    jitter: float = 0.1
    """The part by which a pause may be longer, by chance."""
    lease: float = 30.0
    poll: float = 1.0
    listen: bool = True
    policy: Policy = "block"
    """What becomes of a key when one of its rows can not be published."""
    publish_batch: int = 10
    target_pause: float = 5.0
    keep_sent: timedelta | None = timedelta(days=7)
    """How long rows that were sent or skipped are kept; None keeps them until somebody runs `prune`."""

    def __post_init__(self) -> None:
        for name, most in _COUNTS.items():
            _check_count(name, getattr(self, name), most)
        for name in ("lease", "poll", "target_pause"):
            _check_seconds(name, getattr(self, name), above_zero=True)
        _check_seconds("jitter", self.jitter, above_zero=False)
        _check_backoff(self.backoff)
        object.__setattr__(self, "backoff", tuple(self.backoff))
        if not isinstance(self.listen, bool):
            raise _refused("listen", self.listen, "true or false")
        _check_kept("keep_sent", self.keep_sent)
        if self.policy not in _POLICIES:
            raise _refused("policy", self.policy, f"one of {', '.join(_POLICIES)}")

    @property
    def horizon(self) -> float:
        """The longest time from a row's first to its last attempt, in seconds, with all the jitter there can be."""
        return sum(self.pause(attempt, chance=1.0) for attempt in range(1, self.retry_max))

    def pause(self, attempts: int, *, chance: float) -> float:
        """The seconds from the failure that made it so many attempts to the next one; the last pause repeats."""
        return self.backoff[min(attempts, len(self.backoff)) - 1] * (1 + chance * self.jitter)


def _check_count(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _refused(name, value, f"a whole number from 1 to {most:,}")


def _check_seconds(name: str, value: object, *, above_zero: bool) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0 <= number <= _MOST_SECONDS or (above_zero and number == 0):
        raise _refused(name, value, "a number above 0" if above_zero else "a number of 0 or more")


def _check_kept(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, timedelta) and value >= timedelta(0)):
        raise _refused(name, value, "a timedelta of 0 or more, or None")


def _check_backoff(backoff: object) -> None:
    if not isinstance(backoff, tuple | list) or not backoff:
        raise _refused("backoff", backoff, "one or more numbers of seconds")
    for pause in backoff:
        _check_seconds("backoff", pause, above_zero=False)


def _refused(name: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{name}: {value!r} is not {wanted}", field=name, remedy=f"Give {wanted}.")
