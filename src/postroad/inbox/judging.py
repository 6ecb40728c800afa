"""What becomes of one delivery: read, chosen, applied, and judged."""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Coroutine, Generator
from dataclasses import dataclass

import msgspec

from postroad.errors import ConfigurationError, InvalidMessage, StorageFull, TransportError
from postroad.events import DomainEvent
from postroad.inbox.applying import Ack, Again, Application, Bury, Handler, Verdict
from postroad.inbox.bodies import read_event
from postroad.inbox.choosing import Choice
from postroad.inbox.telling import Teller
from postroad.inbox.timing import TOO_SHORT, Timing
from postroad.queues import Delivery
from postroad.queues.burying import describe
from postroad.telemetry import tracing

_THE_DATABASE = (TransportError, ConfigurationError, StorageFull)


@dataclass(frozen=True, slots=True)
class Timed:
    """A handler whose time is taken, in a span of its own."""

    handler: Handler
    timing: Timing
    teller: Teller

    def __call__(self, event: DomainEvent, given: object) -> None:
        started = time.perf_counter()
        try:
            with tracing.handling_by(self.handler, event.traceparent):
                _refuse_unstarted(self.handler(event, given))
        finally:
            self._took(time.perf_counter() - started)

    def _took(self, seconds: float) -> None:
        self.teller.took(seconds)
        if self.timing.add(seconds):
            self.teller.visibility_too_short(self.timing.advice[TOO_SHORT])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges the deliveries of one consumer."""

    choice: Choice
    application: Application
    teller: Teller

    def judge(self, delivery: Delivery) -> tuple[Verdict, DomainEvent | None]:
        """Make the event's effect where it has to be made, and say what follows."""
        try:
            event = read_event(delivery.body)
        except InvalidMessage as error:
            return Bury(reason="malformed", error=describe(error)), None
        if event.type not in self.choice:
            return Ack("ignored"), event
        try:
            with self.teller.handling(event):
                return self.application.apply(event, fingerprint_of(event)), event
        except Exception as error:
            return Again(outcome="failed", error=describe(error), database=isinstance(error, _THE_DATABASE)), event


def _refuse_unstarted(returned: object) -> None:
    """Nobody awaits or iterates what a handler returns: its work was not done."""
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if isinstance(returned, Coroutine | Generator):
            returned.close()
        raise TypeError(f"handler: returned a {type(returned).__name__}; give a plain function that does its work")


def fingerprint_of(event: DomainEvent) -> str:
    """The same for two copies of an event, and another for another content.

    The time is left out: of an event that was recorded without one, each copy has its own.
    """
    content = msgspec.json.encode((event.type, event.tenant_id, event.key, event.payload))
    return hashlib.sha256(content).hexdigest()[:32]
