"""Receiving: one receiver polls a queue, keeps leases, and acks, retries, rejects or defers each message."""

from postroad.receiving.breaker import Breaker, BreakerState, CircuitBreaker, CircuitBreakerConfig
from postroad.receiving.handlers import (
    HandlingContext,
    LoopThread as LoopThread,
    Result as Result,
    Workers as Workers,
    completed as completed,
    context_of,
    current_context,
    handling,
    in_thread as in_thread,
    is_async as is_async,
    key_of as key_of,
    name_of as name_of,
    read_envelope as read_envelope,
    settled as settled,
    to_its_end as to_its_end,
)
from postroad.receiving.leases import Chore
from postroad.receiving.outcomes import (
    NO_DEAD_LETTERS,
    NOT_RETRYABLE as NOT_RETRYABLE,
    STOPPED as STOPPED,
    Ack,
    DeadLetters,
    Decide,
    DecideTogether,
    Defer,
    GivenDeadLetters,
    Hooks,
    Outcome,
    OwnDeadLetters,
    Reject,
    Retry,
    explain as explain,
    outcome_of as outcome_of,
)
from postroad.receiving.receiver import Receiver
from postroad.receiving.settlement import HANDLER_FAILED as HANDLER_FAILED, Counts, log_traceback as log_traceback
from postroad.receiving.workers import current_work

__all__ = [
    "NO_DEAD_LETTERS",
    "Ack",
    "Breaker",
    "BreakerState",
    "Chore",
    "CircuitBreaker",
    "CircuitBreakerConfig",
    "Counts",
    "DeadLetters",
    "Decide",
    "DecideTogether",
    "Defer",
    "GivenDeadLetters",
    "HandlingContext",
    "Hooks",
    "Outcome",
    "OwnDeadLetters",
    "Receiver",
    "Reject",
    "Retry",
    "context_of",
    "current_context",
    "current_work",
    "handling",
]
