"""The settings of a dispatcher, and the report of what it did."""

from __future__ import annotations

from dataclasses import astuple, dataclass
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
    """How one dispatcher claims, publishes and retries.

    Raises:
        ConfigurationError: A value is not what its field allows.

    Example:
        DispatcherConfig(policy="park", retry_max=5, keep_sent=timedelta(days=1))
    """

    batch: Count = 50
    """The number of rows that one claim takes at the most. More helps where the database is far away."""
    concurrency: Count = 10
    """The number of calls to the publisher that may run at once."""
    backoff: Pauses = (1, 5, 30, 120, 600, 3600)
    """Seconds from each failed attempt of a row to the next one; the last value repeats."""
    retry_max: Attempts = 10
    """The number of attempts after which a row is FAILED."""
    jitter: Pause = 0.1
    """The part of a backoff by which it may be longer, by chance, so that retries do not come all at once."""
    lease: Positive = 30.0
    """Seconds for which claimed rows belong to this dispatcher; they are renewed before their calls. After a crash,
    other dispatchers publish the rows once this time is over. It must be longer than a call to the publisher takes."""
    poll: Positive = 1.0
    """Seconds between two looks for new rows where no wake-up comes."""
    listen: bool = True
    """Whether commits wake the dispatcher: by LISTEN on PostgreSQL, by a look at the file's version on SQLite. Without
    it, new rows wait for the next poll."""
    policy: Policy = "block"
    """What happens to a key when one of its rows is FAILED: "block" publishes nothing more of the key until an operator
    redrives or skips the row, "park" moves the key's other rows to PARKED as well, "skip" goes on without the row."""
    publish_batch: Count = 10
    """The number of messages in one call to the publisher at the most; SNS and SQS accept 10."""
    target_pause: Positive = 5.0
    """Seconds for which nothing is published after the target refused everything; doubled each time, up to 60."""
    keep_sent: Kept = timedelta(days=7)
    """How long rows that were sent or skipped are kept; None keeps them until `Outbox.prune` is called."""

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "backoff", tuple(self.backoff))
        if isinstance(self.keep_sent, timedelta) and self.keep_sent < timedelta(0):
            raise refusal(self.keep_sent, Kept, "keep_sent", ConfigurationError)

    @property
    def horizon(self) -> float:
        """The longest time in seconds from the first to the last attempt of a row, with the largest jitter."""
        return sum(self.pause(attempt, chance=1.0) for attempt in range(1, self.retry_max))

    def pause(self, attempts: int, *, chance: float) -> float:
        """Return the seconds to the next attempt after so many failed `attempts`; `chance` is from 0 to 1."""
        return self.backoff[min(attempts, len(self.backoff)) - 1] * (1 + chance * self.jitter)


@dataclass(frozen=True, slots=True)
class DispatchReport:
    """How many rows were claimed, and how many of them were sent, retried, failed, held or stale."""

    claimed: int = 0
    """Rows that were leased."""
    sent: int = 0
    """Rows that were published."""
    retried: int = 0
    """Failed and due again later."""
    failed: int = 0
    """Given up: FAILED."""
    held: int = 0
    """Released without an attempt: behind a failed row of their key, or because the target is unavailable."""
    stale: int = 0
    """Claimed by another dispatcher since; nothing was changed."""

    def __add__(self, other: DispatchReport) -> DispatchReport:
        return DispatchReport(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))
