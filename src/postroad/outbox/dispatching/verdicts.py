"""What an answer of the publisher means for the row: sent, tried in vain, impossible, or the target's own fault."""

from __future__ import annotations

import math
from dataclasses import dataclass

from postroad.errors import (
    CircuitOpenError,
    ConfigurationError,
    HeldBack,
    InvalidInput,
    MessageTooLarge,
    NotPermitted,
    QueueNotFound,
    RateLimited,
    RowRejected,
    StorageFull,
    StreamNotFound,
    TargetUnavailable,
    Throttled,
    TopicNotFound,
)
from postroad.telemetry.text import redact

_MOST_CHARACTERS = 500
_MOST_READ = 4_000
_OF_THE_TARGET = (
    TargetUnavailable, TopicNotFound, QueueNotFound, StreamNotFound, NotPermitted, Throttled, RateLimited,
    CircuitOpenError, ConfigurationError, StorageFull,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sent:
    """The target has it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """It failed, or nobody knows: to be tried again under the same id."""

    error: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """It can never be published."""

    error: str


@dataclass(frozen=True, slots=True)
class TargetDown:
    """The target refuses everything for now, whatever the row."""

    error: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Untried:
    """It was not sent, and has to wait for an earlier one."""


Verdict = Sent | Tried | Rejected | TargetDown | Untried
SENT = Sent()
UNTRIED = Untried()


def judge(error: BaseException) -> Verdict:
    """What an error of the publisher means; an error that nobody knows leaves the outcome unknown."""
    if isinstance(error, HeldBack):
        return UNTRIED
    if isinstance(error, _OF_THE_TARGET):
        return TargetDown(described(error), _pause(getattr(error, "retry_after", None)))
    if isinstance(error, MessageTooLarge):
        return Rejected(described(error, "too-large"))
    if isinstance(error, RowRejected | InvalidInput):
        return Rejected(described(error, "rejected"))
    return Tried(described(error))


def described(error: BaseException, label: str | None = None) -> str:
    """The error in one line of at most 500 characters, without secrets, that begins with its class or the label."""
    text = redact(f"{label or type(error).__name__}: {error}"[:_MOST_READ])
    return "".join(character for character in text if character.isprintable())[:_MOST_CHARACTERS]


def _pause(asked: object) -> float | None:
    """The pause that a target asks for, where that is a time: a publisher of anybody's may say anything."""
    seconds = asked if isinstance(asked, int | float) else 0.0
    return seconds if 0 < seconds < math.inf else None
