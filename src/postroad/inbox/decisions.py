"""What a consumer decides about a delivery: read it, choose it, and make its effect once."""

from __future__ import annotations

import hashlib
import inspect
import re
import time
from collections.abc import Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from postroad.errors import ConfigurationError, InvalidMessage, StorageFull, TransportError, UnknownEventType, describe
from postroad.events import DomainEvent, codec, default_registry
from postroad.inbox.applications import DEAD, IGNORED, Application, Handler
from postroad.inbox.telemetry import TOO_SHORT, ConsumerTelemetry, Timing
from postroad.queues import Delivery
from postroad.receiving import (
    Ack,
    Defer,
    HandlingContext,
    Outcome,
    Reject,
    Retry,
    completed,
    current_context,
    handling,
    read_envelope,
)
from postroad.telemetry import tracing

_TYPE = re.compile(r"[A-Za-z0-9._:-]{1,200}(\.\*)?")


@dataclass(frozen=True, slots=True)
class Choice:
    """Types by their exact names and by what they begin with."""

    names: frozenset[str]
    prefixes: tuple[str, ...]
    classes: frozenset[str] = frozenset()
    """The names of those that were given as classes."""

    def __contains__(self, event_type: str) -> bool:
        return event_type in self.names or event_type.startswith(self.prefixes)


def choose(types: Iterable[str | type] | None) -> Choice:
    """Return the choice of these types; None chooses all.

    A type is an event class or a name, of which `prefix.*` means all that begin with `prefix.`.
    """
    if types is None:
        return Choice(frozenset(), ("",))
    if isinstance(types, str | type):
        raise _refused(types)
    given = list(types)
    classes = frozenset(default_registry.register(each) for each in given if isinstance(each, type))
    names = [str(each) for each in given if not isinstance(each, type)]
    for each in names:
        if _TYPE.fullmatch(each) is None:
            raise _refused(each)
    if not given:
        raise _refused(given)
    prefixes = tuple(each.removesuffix("*") for each in names if each.endswith(".*"))
    return Choice(classes | {each for each in names if not each.endswith(".*")}, prefixes, classes)


def _refused(types: object) -> ConfigurationError:
    return ConfigurationError(
        f"types: {types!r} is not a list of types or prefixes",
        field="types",
        remedy="Give event classes, names such as 'orders.placed' or 'orders.*', or None for all.",
    )


_THE_DATABASE = (TransportError, ConfigurationError, StorageFull)


class Timed:
    """A handler whose time is taken, in a span of its own."""

    def __init__(self, handler: Handler, timing: Timing, teller: ConsumerTelemetry) -> None:
        self._handler, self._timing, self._teller = handler, timing, teller

    def __call__(self, event: object, given: object) -> Any:
        with self._measured():
            _refuse_unstarted(self._handler(event, given))

    @contextmanager
    def _measured(self) -> Iterator[None]:
        started = time.perf_counter()
        context = current_context()
        try:
            with tracing.handling_by(self._handler, None if context is None else context.envelope.traceparent):
                yield
        finally:
            seconds = time.perf_counter() - started
            self._teller.took(seconds)
            if self._timing.add(seconds):
                self._teller.visibility_too_short(self._timing.advice[TOO_SHORT])


class AsyncTimed(Timed):
    """An async handler whose time is taken."""

    async def __call__(self, event: object, given: object) -> None:
        with self._measured():
            await self._handler(event, given)


@dataclass(slots=True, kw_only=True)
class Decisions:
    """Decides about the deliveries of one consumer."""

    choice: Choice
    application: Application
    teller: ConsumerTelemetry
    database_failed: bool = False
    """Whether the database was at fault since this was last set to False."""

    def decide(self, delivery: Delivery) -> Outcome:
        """Make the event's effect where it has to be made, and return what follows."""
        return completed(self.adecide(delivery))

    async def adecide(self, delivery: Delivery) -> Outcome:
        """Do what `decide` does where the handler is async."""
        try:
            envelope = read_envelope(codec, delivery)
            event = DomainEvent.from_envelope(envelope)
            if event.type not in self.choice:
                return Ack(label=IGNORED, about=event)
            passed = codec.unwrap(envelope) if event.type in self.choice.classes else event
        except (InvalidMessage, UnknownEventType) as error:
            return Reject("malformed", describe(error), label=DEAD)
        context = HandlingContext(envelope=envelope, receive_count=delivery.receive_count, remote=True, event=passed)
        try:
            with self.teller.handling(event), handling(context):
                outcome = await self.application.apply(event, passed, fingerprint_of(event))
        except Exception as error:
            self.database_failed |= isinstance(error, _THE_DATABASE)
            outcome = Retry(error=describe(error))
        return outcome if isinstance(outcome, Defer) else replace(outcome, about=event)


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
