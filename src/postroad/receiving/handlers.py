"""Handlers: the context that they run in, and how plain and async ones are called, from threads and event loops."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar, cast

from postroad.events import OUTBOX, Codec, Envelope, envelope_of
from postroad.queues import Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingContext:
    """The delivery of the event that is being handled.

    Attributes:
        envelope: The event in transit.
    """

    envelope: Envelope
    receive_count: int = 0
    """How many times the message was received; 0 on the publisher's own thread."""
    remote: bool = False
    """Whether it was received, and not handled during `publish`."""
    replayed: bool = False
    """Whether it is replayed from an archive."""
    event: object = None
    """The event itself; an event that the handler publishes in this process only is another one, without a context."""


_current: contextvars.ContextVar[HandlingContext | None] = contextvars.ContextVar("postroad_handling", default=None)


def current_context() -> HandlingContext | None:
    """Return the context of the handler that calls this; None outside of handlers and for events without an envelope.

    Example:
        @orders.on(OrderPlaced)
        def charge(event: OrderPlaced) -> None:
            context = postroad.current_context()
            print(context.envelope.event_id, context.receive_count)
    """
    return _current.get()


def context_of(event: object) -> HandlingContext | None:
    """Return the context of this very event; an event that a handler publishes in its process only has none.

    Args:
        event: The event.
    """
    context = _current.get()
    return context if context is not None and context.event is event else None


@contextmanager
def handling(context: HandlingContext | None) -> Iterator[None]:
    """Let handlers inside the block see this context.

    Args:
        context: The context; None for none.
    """
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def read_envelope(codec: Codec, delivery: Delivery) -> Envelope:
    """Return the envelope in the body; the publisher of an event from the outbox is the dispatcher's service."""
    envelope = codec.decode(delivery.body)
    publisher = delivery.attributes.get("PublisherId")
    if envelope.publisher_id != OUTBOX or not publisher:
        return envelope
    return envelope_of({**vars(envelope), "publisher_id": publisher})


_Callable = Callable[..., Any]
Result = TypeVar("Result")
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("postroad_async_handler", default=False)
_waiting: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar(
    "postroad_waiting_loop", default=None
)
"""The loop that awaits the blocking call of this thread, so that handlers may run on it."""
_LOOK_SECONDS = 0.5


class LoopThread:
    """One event loop on a thread of its own, started when first needed and ended with its owner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self.home: asyncio.AbstractEventLoop | None = None
        """The program's own loop, in which the receiver was started: what it opened there works in no other."""

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Run the awaitable in the caller's context until it is done; return its result or raise its error.

        It runs on the program's loop if that is known and does not wait for this call, else on the loop of the thread.
        """
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        if (home := self._free_home()) is not None:
            home.call_soon_threadsafe(_start, awaitable, future, context)
            while not future.done():
                wait_for([future], timeout=_LOOK_SECONDS)
                if home.is_closed() and not future.done():
                    future.set_exception(CancelledError("the event loop of the handlers was closed"))
            return future.result()
        if _inside.get() or running_loop() is self.loop:
            # The loop waits for this very call, so a handler's own publish needs another loop.
            threading.Thread(target=context.run, args=(asyncio.run, _settle(awaitable, future)), daemon=True).start()
        else:
            context.run(_inside.set, True)
            self.loop.call_soon_threadsafe(_start, awaitable, future, context)
        return future.result()

    async def arun(self, awaitable: Awaitable[Result]) -> Result:
        """Await it on this loop, or on the program's own if that is another one."""
        home = self._free_home()
        if home is not None:
            awaitable = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(settled(awaitable), home))
        return await settled(awaitable)

    def _free_home(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop that the caller may wait for; None if it is the caller's own, or waits for the caller."""
        home = _waiting.get() or self.home
        if home is None or _inside.get() or not home.is_running() or home is running_loop():
            return None
        return home

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=_serve, args=(self._loop,), name="postroad-async", daemon=True).start()
                weakref.finalize(self, _stop, self._loop, self._pid)
            return self._loop


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs on this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    # A forked child inherits the loop without its thread.
    if pid == os.getpid() and not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


def _start(awaitable: Awaitable[Any], future: Future[Any], context: contextvars.Context) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(_settle(awaitable, future), context=context)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


_tasks: set[asyncio.Task[None]] = set()
"""The running tasks, because a loop refers to them only weakly."""


async def _settle(awaitable: Awaitable[Any], future: Future[Any]) -> None:
    try:
        result = await awaitable
    except asyncio.CancelledError as error:
        # Nothing cancels a publish: a handler that was cancelled has failed.
        future.set_exception(CancelledError(*error.args))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class LoopClosed(Exception):
    """The event loop of the handlers was closed before their receiver was stopped."""


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """Return the threads for blocking calls of async programs: enough of them to share commits."""
    return ThreadPoolExecutor(32, "postroad-async-call")


@cache
def _settlers(pid: int) -> ThreadPoolExecutor:
    """Return the threads in which messages are begun and settled: few, because acks are collected."""
    return ThreadPoolExecutor(4, "postroad-settle")


async def in_thread(function: Callable[..., Result], *args: Any, pool: Callable[[int], Executor] = _pool) -> Result:
    """Run a blocking function in a thread, in the caller's context; return its result or raise its error."""
    context, loop = contextvars.copy_context(), asyncio.get_running_loop()
    context.run(_waiting.set, loop)
    return await loop.run_in_executor(pool(os.getpid()), partial(context.run, function, *args))


async def to_its_end(function: Callable[..., Result], *args: Any, pool: Callable[[int], Executor] = _pool) -> Result:
    """Run a blocking function in a thread and wait for its end, even if the caller is cancelled meanwhile."""
    running = asyncio.ensure_future(in_thread(function, *args, pool=pool))
    while True:
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()


async def settle_in_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Do what `to_its_end` does, in one of the few threads that settle messages."""
    return await to_its_end(function, *args, pool=_settlers)


def completed(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never waits, because it calls plain functions only; no event loop is needed."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(Result, ended.value)
    coroutine.close()
    raise RuntimeError("the coroutine waits for something; await it on an event loop")


async def settled(value: Result | Awaitable[Result]) -> Result:
    """Return the value, awaited if it is awaitable.

    Raises:
        concurrent.futures.CancelledError: Something that it waited for was cancelled, but not the caller's task, so it
            has failed like any other.
    """
    if not isinstance(value, Awaitable):
        return value
    try:
        return await cast(Awaitable[Result], value)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CancelledError(*error.args).with_traceback(error.__traceback__) from None


def is_async(handler: _Callable) -> bool:
    """Return whether calling the handler surely gives a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object's own __call__ may be async
    )


def name_of(handler: _Callable) -> str:
    """Return the handler's name for logs and inboxes: `module.qualname`."""
    module = getattr(handler, "__module__", None) or type(handler).__module__
    return f"{module}.{getattr(handler, '__qualname__', None) or type(handler).__qualname__}"


def key_of(handler: _Callable) -> Hashable:
    """Return what tells the handler from others; an object that cannot be hashed is only equal to itself."""
    try:
        hash(handler)
    except TypeError:
        return id(handler)
    return handler


_IDLE_SECONDS = 5.0


class Workers:
    """Daemon threads that start when there is work and end when there was none for a while."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], object]] = deque()
        self._idle = self._count = 0

    def submit(self, job: Callable[[], object]) -> None:
        with self._changed:
            self._jobs.append(job)
            if len(self._jobs) > self._idle and self._count < self._most:
                self._count += 1
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            else:
                self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs, _IDLE_SECONDS)
                self._idle -= 1
                if not self._jobs:
                    self._count -= 1
                    return
                job = self._jobs.popleft()
            job()
            # While it waits for more, a thread must not keep what the last job referred to.
            del job


class Users:
    """Counts the threads that poll or handle; what has to wait for the last of them runs when it leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._afterwards: Callable[[], None] | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Count the caller for as long as the block runs."""
        with self._lock:
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
            self._act()

    def afterwards(self, action: Callable[[], None]) -> None:
        """Run the action once when no thread is inside: now, or on the last thread that leaves."""
        with self._lock:
            self._afterwards = action
        self._act()

    def _act(self) -> None:
        with self._lock:
            if self._inside or self._afterwards is None:
                return
            action, self._afterwards = self._afterwards, None
        action()
