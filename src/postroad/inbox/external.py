"""Effects outside of the database: written to the inbox before and after, so that an unknown outcome is noticed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from postroad import failpoints
from postroad.clock import Clock
from postroad.errors import PostroadError, Retryable
from postroad.events import DomainEvent
from postroad.receiving import Ack, Outcome, Reject, Retry, to_its_end

if TYPE_CHECKING:
    from postroad.inbox.inbox import Inbox

DUPLICATES, IGNORED, RELEASED, DEAD = "duplicates", "ignored", "released", "dead"
"""Labels of outcomes, which a `ConsumeReport` counts."""
OnUnknown = Literal["dead_letter", "retry"]
Handler = Callable[[Any, Any], Any]
"""Gets the event, as a DomainEvent or an instance of its class, and the connection or effect."""
T = TypeVar("T")
_SHORTEST = 1.0

EffectStatus = Literal["new", "done", "busy", "unknown"]


class EffectNotDone(Exception):
    """Raised by a handler whose effect certainly did not happen: the event is forgotten and delivered again as new."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One attempt at an external effect. Pass `idempotency_key` or `token` on to what can refuse a repeated call."""

    status: EffectStatus
    """What to do: make it if "new", not if "done" or "busy"; if "unknown", an earlier attempt may have made it."""
    attempt: int
    """The number of the attempt, from 1."""
    token: int
    """Grows with each attempt; a service that remembers the largest one can refuse late attempts."""
    idempotency_key: str
    """The same in every attempt at this effect."""
    retry_after: float = 0.0
    """If busy: seconds until the lease of the other attempt ends, unless it is renewed."""

    @property
    def consumer(self) -> str:
        """The name of the consumer."""
        return self.idempotency_key.rpartition(":")[0]

    @property
    def event_id(self) -> UUID:
        """The id of the event."""
        return UUID(self.idempotency_key.rpartition(":")[2])


class Renewals:
    """Renews the lease of every running effect when half of it is over.

    A lease lasts for half of the queue's visibility: after a crash it ends before the message is delivered again.
    """

    def __init__(self, inbox: Inbox, visibility: float, clock: Clock, *, wake: Callable[[], None]) -> None:
        self.lease = max(_SHORTEST, visibility / 2)
        self._inbox = inbox
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._running: dict[str, tuple[float, Effect]] = {}
        self._wake = wake

    @contextmanager
    def kept(self, effect: Effect) -> Iterator[None]:
        """Renew the effect's lease inside the block."""
        with self._lock:
            self._running[effect.idempotency_key] = (self._monotonic() + self.lease / 2, effect)
        self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(effect.idempotency_key, None)

    def due(self) -> float | None:
        """Return when the next lease needs a renewal."""
        with self._lock:
            return min((due for due, _ in self._running.values()), default=None)

    def run(self) -> None:
        """Renew what is due, and drop effects that a later attempt has taken over; their `finish` will return False."""
        now = self._monotonic()
        with self._lock:
            due = [effect for at, effect in self._running.values() if at <= now]
        for effect in due:
            kept = self._inbox.renew(effect, lease=self.lease)
            with self._lock:
                if effect.idempotency_key not in self._running:
                    continue
                if kept:
                    self._running[effect.idempotency_key] = (now + self.lease / 2, effect)
                else:
                    del self._running[effect.idempotency_key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Makes effects outside of any transaction, fenced by tokens."""

    name: str
    inbox: Inbox
    handler: Handler
    on_unknown: OnUnknown
    renewals: Renewals
    is_async: bool = False
    """Whether the handler is async; the inbox, which is not, is then called in threads."""

    async def apply(self, event: DomainEvent, passed: object, fingerprint: str) -> Outcome:
        effect = await self._run(self._begin, event)
        if not isinstance(effect, Effect):
            return effect
        try:
            with self.renewals.kept(effect):
                returned = self.handler(passed, effect)
                if self.is_async:
                    await returned
        except (EffectNotDone, Retryable):
            # Whoever asks for another attempt wants the effect to be made again.
            await self._run(self.inbox.forget, effect)
            raise
        except BaseException:
            # The outcome is unknown; the next attempt must not have to wait for the lease to say so.
            with suppress(PostroadError):
                await self._run(self.inbox.abandon, effect)
            raise
        failpoints.hit("consumer.after_effect")
        if not await self._run(self.inbox.finish, effect):
            return Retry(error="a later attempt has taken the effect over")
        failpoints.hit("consumer.after_commit")
        return Ack()

    async def check(self) -> None:
        await self._run(self.inbox.check)

    def _begin(self, event: DomainEvent) -> Effect | Outcome:
        effect = self.inbox.begin(self.name, event.event_id, lease=self.renewals.lease)
        if effect.status == "done":
            return Ack(label=DUPLICATES)
        if effect.status == "busy":
            return Retry(effect.retry_after, "the effect is being made elsewhere", label=RELEASED)
        if effect.status == "unknown" and self.on_unknown == "dead_letter":
            self.inbox.abandon(effect)
            return Reject("unknown-outcome", f"attempt {effect.attempt - 1} began and never ended", label=DEAD)
        return effect

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await to_its_end(function, *arguments) if self.is_async else function(*arguments)
