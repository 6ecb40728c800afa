"""How a dispatcher claims, publishes and retries, checked when it is written down, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Meta

from postroad.arguments import check_settings, refusal
from postroad.errors import ConfigurationError

Policy = Literal["block", "park", "skip"]
Count = Annotated[int, Meta(ge=1, le=1_000, description="a whole number from 1 to 1,000")]
Attempts = Annotated[int, Meta(ge=1, le=1_000_000, description="a whole number from 1 to 1,000,000")]
Positive = Annotated[float, Meta(gt=0, le=31_536_000, description="a number above 0")]
Pause = Annotated[float, Meta(ge=0, le=31_536_000, description="a number of 0 or more")]
Pauses = Annotated[tuple[Pause, ...], Meta(min_length=1, description="one or more numbers of seconds of 0 or more")]
Kept = Annotated[timedelta | None, Meta(description="a timedelta of 0 or more, or None")]


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """The settings of one dispatcher; the defaults are those of the seed."""

    batch: Count = 50
    """Rows that one claim takes at the most."""
    concurrency: Count = 10
    backoff: Pauses = (1, 5, 30, 120, 600, 3600)
    retry_max: Attempts = 10
    jitter: Pause = 0.1
    """The part by which a pause may be longer, by chance."""
    lease: Positive = 30.0
    poll: Positive = 1.0
    listen: bool = True
    policy: Policy = "block"
    """What becomes of a key when one of its rows can not be published."""
    publish_batch: Count = 10
    target_pause: Positive = 5.0
    keep_sent: Kept = timedelta(days=7)
    """How long rows that were sent or skipped are kept; None keeps them until somebody runs `prune`."""

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "backoff", tuple(self.backoff))
        if isinstance(self.keep_sent, timedelta) and self.keep_sent < timedelta(0):
            raise refusal(self.keep_sent, Kept, "keep_sent", ConfigurationError)

    @property
    def horizon(self) -> float:
        """The longest time from a row's first to its last attempt, in seconds, with all the jitter there can be."""
        return sum(self.pause(attempt, chance=1.0) for attempt in range(1, self.retry_max))

    def pause(self, attempts: int, *, chance: float) -> float:
        """The seconds from the failure that made it so many attempts to the next one; the last pause repeats."""
        return self.backoff[min(attempts, len(self.backoff)) - 1] * (1 + chance * self.jitter)


@dataclass(frozen=True, slots=True)
class DispatchReport:
    """How many rows were claimed, and what became of them."""

    claimed: int = 0
    sent: int = 0
    retried: int = 0
    """Failed and due again later."""
    failed: int = 0
    """Given up: FAILED."""
    held: int = 0
    """Given back without an attempt: behind a failed row of their key, or because the target is unavailable."""
    stale: int = 0
    """Another dispatcher has them by now; nothing was changed."""

    def __add__(self, other: DispatchReport) -> DispatchReport:
        return DispatchReport(
            claimed=self.claimed + other.claimed,
            sent=self.sent + other.sent,
            retried=self.retried + other.retried,
            failed=self.failed + other.failed,
            held=self.held + other.held,
            stale=self.stale + other.stale,
        )
