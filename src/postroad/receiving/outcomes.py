"""What a user of a receiver passes to it: the outcomes that `decide` returns, dead letters, and hooks."""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from msgspec import Meta

from postroad.arguments import check
from postroad.clock import Clock
from postroad.errors import NonRetryable, NotSupported, describe, retry_wish
from postroad.queues import MAX_VISIBILITY, TRACEBACK, TRACEBACK_LINES, Delivery, OutgoingMessage, Queue, mark_dead
from postroad.receiving.handlers import LoopThread
from postroad.receiving.leases import Chore, Observe

Delay = Annotated[float, Meta(ge=0, le=MAX_VISIBILITY, description="a number of seconds from 0 to 43200")]
Text = Annotated[str, Meta(description="text, such as str(error)")]


@dataclass(frozen=True, slots=True)
class Ack:
    """Delete the message: it is done.

    Args:
        label: The name of this case in counters and log lines, such as `duplicate`; without one it was handled.
        about: Passed on to the receiver's `observe` hook.
    """

    _: KW_ONLY
    label: str | None = None
    about: object = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the message again later. After `max_receives` attempts it is rejected instead.

    Args:
        after: Seconds until it is delivered again, 0 to 43,200; by default the entry of `retry_delays`.
        error: Why it failed, for the log and the dead letter.
        label: The name of this case in counters and log lines. A retry with a label is not a failure: it never opens
            the circuit breaker, and the message is never rejected.
        about: Passed on to the receiver's `observe` hook.
        max_attempts: The attempt at which it is rejected; by default the receiver's `max_receives`.

    Raises:
        InvalidInput: `after` is out of bounds, or `error` is no text.
    """

    after: float | None = None
    error: str | None = None
    _: KW_ONLY
    label: str | None = None
    about: object = None
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        check(self.after, Delay | None, "after")
        check(self.error, Text | None, "error")


@dataclass(frozen=True, slots=True)
class Reject:
    """Move the message to the dead letters now. If there are none, it is delivered again as after a `Retry`.

    Args:
        reason: A short word for the dead letter, such as `invalid`.
        error: What exactly was wrong.
        after: Seconds until it is delivered again if there are no dead letters; by default as for a `Retry`.
        label: The name of this case in counters and log lines; without one the handler failed.
        about: Passed on to the receiver's `observe` hook.

    Raises:
        InvalidInput: `error` is no text.
    """

    reason: str
    error: str | None = None
    _: KW_ONLY
    after: float | None = None
    label: str | None = None
    about: object = None

    def __post_init__(self) -> None:
        check(self.error, Text | None, "error")


@dataclass(frozen=True, slots=True)
class Defer:
    """Deliver the message again after so many seconds, without counting this receive as an attempt.

    The queue's trait `defers_by` names the way. `undo`: the embedded engine undoes the receive. `copy`: on a standard
    SQS queue a delayed copy replaces the message, which also resets its receive count; the longest delay is 900
    seconds. `retry`: an SQS FIFO queue allows neither, so there it is a `Retry`.

    Args:
        after: Seconds until it is delivered again, 0 to 43,200.
        label: The name of this case in counters and log lines, such as `unhandled`.
        about: Passed on to the receiver's `observe` hook.

    Raises:
        InvalidInput: `after` is out of bounds.
    """

    after: float
    _: KW_ONLY
    label: str | None = None
    about: object = None

    def __post_init__(self) -> None:
        check(self.after, Delay, "after")


Outcome = Ack | Retry | Reject | Defer
_CALLERS = ("postroad.receiving.", "postroad.bus.", "postroad.inbox.", "postroad.agents.")
STOPPED = "stopped"
"""The label of a message whose handling was cut short by a stop: where the queue can, the receive is undone."""
NOT_RETRYABLE = "not_retryable"
"""The reason of a dead letter whose handler raised `NonRetryable`."""


def outcome_of(error: BaseException) -> Retry | Reject:
    """Return what an error means for the message: another attempt, unless it is or comes from a `NonRetryable`."""
    wish = retry_wish(error)
    if isinstance(wish, NonRetryable):
        return Reject(NOT_RETRYABLE, explain(error))
    return Retry(None if wish is None else wish.after, explain(error))


def explain(error: BaseException) -> str:
    """Return the error in one line, and behind it the traceback from the handler on, which a queue may keep."""
    frame = error.__traceback__
    while frame is not None and str(frame.tb_frame.f_globals.get("__name__")).startswith(_CALLERS):
        frame = frame.tb_next
    own = error.__traceback__ if frame is None else frame
    if own is None:
        return describe(error)
    lines = "".join(traceback.TracebackException(type(error), error, own, limit=-(TRACEBACK_LINES // 2)).format())
    return f"{describe(error)}{TRACEBACK}{lines.removeprefix(TRACEBACK.lstrip())}"


Decide = Callable[[Delivery], "Outcome | Awaitable[Outcome]"]
"""Decides about one delivery; it may be `async def`."""
DecideTogether = Callable[[Sequence[Delivery]], "Sequence[Outcome] | Awaitable[Sequence[Outcome]]"]
"""Decides about several deliveries at once: one outcome for each, in the same order."""
DeadLetters = Callable[..., bool]
"""Called as `dead_letters(queue, delivery, reason=…, error=…)`: moves the message there; returns False if it stayed."""


@dataclass(frozen=True, slots=True)
class OwnDeadLetters:
    """The dead letters of the queue itself."""

    def __call__(self, queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
        try:
            (result,) = queue.reject([delivery], reason=reason, error=error)
        except NotSupported:
            return False
        return result.ok


@dataclass(frozen=True, slots=True)
class GivenDeadLetters:
    """Another queue for dead letters: a message is first sent there, then deleted here.

    Attributes:
        letters: The queue.
        clock: Gives the time at which a message died.
    """

    letters: Queue
    clock: Clock

    def __call__(self, queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
        attributes = mark_dead(
            delivery.attributes,
            source=queue.name,
            receives=delivery.receive_count,
            error=error,
            at=self.clock.now(),
            reason=reason,
        )
        fifo = self.letters.name.endswith(".fifo")
        # After a crash, or if the lease ended before the ack, it is sent again: the dedup id shows that it is the same.
        # A dead letter that is redriven has an id of its own.
        dedup_id = delivery.message_id if fifo else None
        group = (delivery.group or delivery.message_id) if fifo else None
        (sent,) = self.letters.send([OutgoingMessage(delivery.body, attributes, group=group, dedup_id=dedup_id)])
        if sent.ok:
            # A failed deletion leaves a second copy, never none.
            queue.ack([delivery])
        return sent.ok


def _stay(queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
    return False


NO_DEAD_LETTERS: DeadLetters = _stay
"""For queues without dead letters: a rejected message is delivered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the parts of Postroad that are built on a receiver add to it."""

    observe: Observe | None = None
    """Called for everything that happens to a message, instead of the receiver's own log."""
    ready: Callable[[], None] = lambda: None
    """Called before each receive; while it raises, nothing is received."""
    reopen: Callable[[Queue], bool] = lambda queue: False
    """Called when the queue was removed; returns whether there is another one from now on."""
    chores: Sequence[Chore] = ()
    """Done by the receiver's housekeeping thread."""
    adecide: Callable[[Delivery], Awaitable[Outcome]] | None = None
    """Decides instead of `decide` while `on_loop` returns True, on that loop."""
    on_loop: Callable[[], bool] = lambda: False
    """Returns whether the next messages are decided on an event loop."""
    loop_thread: LoopThread | None = None
    """The loop of a receiver that was not started in one; by default its own."""
    longest: float = math.inf
    """The longest time, in seconds since its handler began, for which a lease is extended."""
    idle_pause: float = 0.0
    """Seconds to pause after a poll that found nothing, varied at random by up to half."""
    during: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered by the receiving thread for as long as it runs."""
    releases_late: bool = False
    """Whether messages whose handlers still run when the time of a stop is over are released for others."""
    joins: bool = True
    """Whether a stop waits for a long poll to end; if not, the poll ends later and gives back what it received."""
