"""A handler as a bus calls it: under its name, within its limits, and inside the middleware of the bus."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from types import FunctionType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar

from postroad.bus.config import HandlerLimits
from postroad.errors import ConfigurationError
from postroad.events import never_an_event
from postroad.receiving import in_thread, is_async, name_of

EventHandler = Callable[..., Any]
"""A plain function or an async one; it takes the event, and on a bus with an inbox the connection too."""
Middleware = Callable[[EventHandler], EventHandler]
"""Takes a handler and returns another one, which usually calls it."""
E = TypeVar("E")
P = ParamSpec("P")
R = TypeVar("R")
_LONGEST_NAME = 100
_numbers = count()


class HandlerOptions(TypedDict, total=False):
    """What `Bus.on` takes besides the types."""

    name: str | None
    max_attempts: int | None
    retry_delays: Sequence[float] | None
    timeout: float | None


class Subscribe(Protocol[E]):
    """The decorator that `Bus.on` returns: it takes a handler of these events and returns it."""

    def __call__(self, handler: Callable[Concatenate[E, P], R], /) -> Callable[Concatenate[E, P], R]:
        """Subscribe the handler."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class Subscription:
    """A handler with all that the bus knows of it; the same function subscribed twice has two of these."""

    handler: EventHandler
    """The handler as it was given."""
    name: str
    """Its name in logs and in the inbox."""
    naming: Literal["given", "default", "unchecked"] = "unchecked"
    """Whether `on` was given the name; names of handlers that `subscribe` takes may repeat."""
    limits: HandlerLimits = field(default_factory=HandlerLimits)
    takes_subclasses: bool = False
    number: int = field(default_factory=lambda: next(_numbers))
    """Handlers run in this order."""
    call: EventHandler = field(init=False)
    """The handler inside its timeout and the middleware."""
    is_async: bool = field(init=False)
    """Whether it runs on an event loop."""

    def __post_init__(self) -> None:
        self.call, self.is_async = self.handler, is_async(self.handler)

    def within(self, middleware: Sequence[Middleware], *, adapts: bool) -> tuple[EventHandler, bool]:
        """Return what to call instead of the handler, and whether it runs on an event loop.

        `adapts`: whether a plain handler may run in a thread inside an async middleware.

        Raises:
            ConfigurationError: A middleware returns no handler, or is async around a plain handler that must not be.
        """
        call, asynchronous, timeout = self.handler, is_async(self.handler), self.limits.timeout
        if timeout is not None:
            call = _limited(call, timeout)
        for each in reversed(middleware):
            made = _made(each, _noted(call, each))
            if is_async(made) and not asynchronous:
                if not adapts:
                    raise ConfigurationError(
                        f"middleware: {name_of(each)} is async, and the handler {self.name} and its connection are not",
                        field="middleware",
                        remedy="Return an async function for async handlers only, or make the handler async.",
                    )
                made, asynchronous = _made(each, _noted(_threaded(call), each)), True
            call = made
        return (_guarded(call) if middleware else call), asynchronous


def check_types(event_types: Sequence[object]) -> None:
    """Raise ConfigurationError if there are no types, or if one of them can never be the class of an event."""
    if not event_types:
        remedy = "Name the classes of the events, as in @bus.on(OrderPlaced); on_any takes every event."
        raise ConfigurationError("event_types: there is none", field="event_types", remedy=remedy)
    for each in event_types:
        why = never_an_event(each) if isinstance(each, type) else "is not a class"
        if why is not None:
            shown = each.__qualname__ if isinstance(each, type) else repr(each)
            remedy = "Name the classes of events, as in @bus.on(OrderPlaced), which @postroad.event declares."
            raise ConfigurationError(f"event_types: {shown} {why}", field="event_types", remedy=remedy)


def check_handler_name(name: object) -> None:
    """Raise ConfigurationError for what cannot be the name of a handler."""
    if not (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()):
        why = f"name: {name!r} is not 1 to {_LONGEST_NAME} printable characters"
        raise ConfigurationError(why, field="name", remedy="Give a short name, such as 'ledger'.")


def check_handler(handler: object, *, with_connection: bool) -> None:
    """Raise ConfigurationError for what cannot be called with the event, and with an inbox the connection."""
    if not callable(handler):
        remedy = "Give a function that takes the event, as in @bus.on(OrderPlaced) above one."
        raise ConfigurationError(f"handler: {handler!r:.80} cannot be called", field="handler", remedy=remedy)
    if not _takes(handler, 2 if with_connection else 1):
        what = "the event and the connection" if with_connection else "the event alone"
        raise ConfigurationError(
            f"handler: {name_of(handler)} cannot be called with {what}",
            field="handler",
            remedy=f"Let it take {what}; any other parameter needs a default.",
        )


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with so many arguments, as far as Python knows its parameters."""
    try:
        # A decorator may pass more arguments than its caller gives, so what it wraps does not matter.
        inspect.signature(function, follow_wrapped=False).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        # Some functions in C do not tell.
        return True
    return True


def check_declared(declared: Subscription, others: Sequence[Subscription]) -> None:
    """Check a handler that `on` subscribes.

    Raises:
        ConfigurationError: It has a timeout and cannot be interrupted, it is a generator, or another one has its name.
    """
    handler = declared.handler
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError(
            f"handler: {declared.name} is a generator, whose body nobody would run",
            field="handler",
            remedy="Give a function that returns, or use `async for event in bus.events(…)`.",
        )
    if declared.limits.timeout is not None and not is_async(handler):
        why = f"timeout: {declared.name} is not async, and a thread cannot be interrupted"
        raise ConfigurationError(why, field="timeout", remedy="Make the handler `async def`, or leave the timeout out.")
    for other in others:
        if other.name == declared.name and _are_confused(declared, other):
            raise ConfigurationError(
                f"name: {declared.name!r} is the name of another handler of this bus",
                field="name",
                remedy="Give each handler its own name, as in @bus.on(OrderPlaced, name='ledger').",
            )


def check_middleware(middleware: Sequence[object]) -> None:
    """Raise ConfigurationError for what surely is no `handler -> handler`."""
    for each in middleware:
        if not callable(each) or not _takes(each, 1):
            raise ConfigurationError(
                f"middleware: {each!r:.80} cannot be called with a handler",
                field="middleware",
                remedy="Give functions that take a handler and return a handler.",
            )
        # A bus may have no handlers yet, so this one stands for them.
        made: Any = _nothing
        with suppress(Exception):
            made = _returned(each, _nothing)
        if not callable(made):
            raise _no_handler(each, made)


def _nothing(event: object, *more: object) -> None: ...


def _no_handler(middleware: EventHandler, made: object) -> ConfigurationError:
    return ConfigurationError(
        f"middleware: {name_of(middleware)} returned {made!r:.80}, which is no handler",
        field="middleware",
        remedy="Let it return the function that is called instead of the handler.",
    )


def _are_confused(one: Subscription, other: Subscription) -> bool:
    """Return whether these of one name are two handlers. Closures and instances that the same lines make are not."""
    if other.naming == "unchecked" or one.handler == other.handler:
        return False
    if "given" in (one.naming, other.naming):
        return True
    return not one.name.endswith("<lambda>") and _source(one.handler) != _source(other.handler)


def _source(handler: EventHandler) -> object:
    function = getattr(handler, "__func__", handler)
    return function.__code__ if isinstance(function, FunctionType) else type(handler)


def _made(middleware: Middleware, handler: EventHandler) -> EventHandler:
    made = _returned(middleware, handler)
    if not callable(made):
        raise _no_handler(middleware, made)
    return made  # type: ignore[no-any-return]  # it was just seen to be callable


def _returned(middleware: Callable[..., Any], handler: EventHandler) -> Any:
    made = middleware(handler)
    if isinstance(made, Coroutine):
        # The middleware itself is `async def`; nobody will await this.
        made.close()
    return made


def _limited(handler: EventHandler, seconds: float) -> EventHandler:
    @functools.wraps(handler)
    async def limited(*arguments: Any) -> Any:
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                return await handler(*arguments)
        except TimeoutError as error:
            if not scope.expired():
                raise
            told = TimeoutError(f"the handler took longer than {seconds:g} s")
            raise told.with_traceback(error.__traceback__) from None

    return limited


def _threaded(handler: EventHandler) -> EventHandler:
    @functools.wraps(handler)
    async def threaded(*arguments: Any) -> Any:
        found, error = await in_thread(outcome, handler, *arguments)
        if error is not None:
            raise error
        return await found if inspect.isawaitable(found) else found

    return threaded


_Begun = list[tuple[Middleware, Coroutine[Any, Any, Any]]]
_begun: ContextVar[_Begun | None] = ContextVar("postroad_begun", default=None)
"""The coroutines that the middleware around the running handler got from what is inside it."""


class _Noted(functools.partial[Any]):
    """A handler as a middleware gets it. It is a partial because `inspect.iscoroutinefunction` looks inside those."""

    middleware: Middleware

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        made, begun = super().__call__(*arguments, **named), _begun.get()
        if begun is not None and inspect.iscoroutine(made):
            begun.append((self.middleware, made))
        return made


def _noted(handler: EventHandler, middleware: Middleware) -> EventHandler:
    noted = _Noted(handler)
    functools.update_wrapper(noted, handler)
    noted.middleware = middleware
    return noted


def _guarded(call: EventHandler) -> EventHandler:
    """Let the call fail if a middleware dropped a coroutine: the event would be acked although nobody handled it."""

    def guarded(*arguments: Any) -> Any:
        begun: _Begun = []
        with _noting(begun):
            found = call(*arguments)
        if inspect.isawaitable(found):
            return awaited(found, begun)
        _refuse_dropped(begun)
        return found

    async def awaited(found: Awaitable[Any], begun: _Begun) -> Any:
        with _noting(begun):
            returned = await found
        _refuse_dropped(begun)
        return returned

    return guarded


@contextmanager
def _noting(begun: _Begun) -> Iterator[None]:
    token = _begun.set(begun)
    try:
        yield
    except Exception:
        # Often this follows from it: an outer middleware cannot await None.
        _refuse_dropped(begun)
        raise
    finally:
        _begun.reset(token)


def _refuse_dropped(begun: _Begun) -> None:
    for middleware, coroutine in reversed(begun):
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()
            raise ConfigurationError(
                f"middleware: {name_of(middleware)} neither returned nor awaited the handler's coroutine: it never ran",
                field="middleware",
                remedy="Write `return handler(event)`, or `return await handler(event)` in an async middleware.",
            )


def outcome(handler: EventHandler, *arguments: Any) -> tuple[Any, Exception | None]:
    """Call the handler and return its error as a value, because a future cannot carry StopIteration."""
    try:
        return handler(*arguments), None
    except Exception as error:
        return None, error
