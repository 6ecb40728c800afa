"""Async handlers: run to their end for a caller that is not async, or awaited by one that is."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar, cast

_Callable = Callable[..., Any]
Result = TypeVar("Result")
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("postroad_async_handler", default=False)


class LoopThread:
    """One event loop on a thread of its own, started when first needed and ended with its owner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait until the awaitable is done, in the caller's context, and return or raise what it does."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        if _inside.get():
            # The loop waits for this very call, so a handler's own publish needs another one.
            threading.Thread(target=context.run, args=(_run_alone, awaitable, future), daemon=True).start()
        else:
            context.run(_inside.set, True)
            self._running().call_soon_threadsafe(_start, awaitable, future, context)
        return future.result()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, running."""
        return self._running()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=_serve, args=(self._loop,), name="postroad-async", daemon=True).start()
                weakref.finalize(self, _stop, self._loop, self._pid)
            return self._loop


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
"""The tasks that run: a loop itself holds them weakly."""


async def _settle(awaitable: Awaitable[Any], future: Future[Any]) -> None:
    try:
        result = await awaitable
    except asyncio.CancelledError as error:
        # Nobody cancels a publish: a handler that was cancelled has failed.
        future.set_exception(CancelledError(*error.args))
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _run_alone(awaitable: Awaitable[Any], future: Future[Any]) -> None:
    asyncio.run(_settle(awaitable, future))


class LoopClosed(Exception):
    """The event loop on which handlers run was closed before its receiver was stopped."""


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    """Where blocking calls of async programs run: enough threads for their commits to be shared."""
    return ThreadPoolExecutor(32, "postroad-async-call")


async def in_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Run a blocking function in a thread, in the caller's context, and return or raise what it does."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_pool(os.getpid()), partial(context.run, function, *args))


async def to_its_end(function: Callable[..., Result], *args: Any) -> Result:
    """Run a blocking function in a thread and wait for its end, even when the caller is cancelled meanwhile."""
    running = asyncio.ensure_future(in_thread(function, *args))
    while True:
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():
                raise
            if (task := asyncio.current_task()) is not None:
                task.uncancel()


def completed(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that waits for nothing, as one is that only calls plain functions; no event loop is needed."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(Result, ended.value)
    coroutine.close()
    raise RuntimeError("the coroutine waits for something; await it on an event loop")


async def settled(value: Result | Awaitable[Result]) -> Result:
    """Return the value, or what it gives when it has to be awaited."""
    return await cast(Awaitable[Result], value) if isinstance(value, Awaitable) else value


def is_async(handler: _Callable) -> bool:
    """Whether calling the handler surely gives a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object's own __call__ may be async
    )


def name_of(handler: _Callable) -> str:
    """Return the handler's name for logs and inboxes: `module.qualname`."""
    module = getattr(handler, "__module__", None) or type(handler).__module__
    return f"{module}.{getattr(handler, '__qualname__', None) or type(handler).__qualname__}"


async def call(handler: _Callable, event: object) -> Exception | None:
    """Run one handler for an async caller: awaited on this loop, or in a thread; its error is returned."""
    try:
        if is_async(handler):
            await handler(event)
        else:
            # The error comes back as a value: some of them, such as StopIteration, a future cannot carry.
            found, error = await in_thread(_call, handler, event)
            if error is not None:
                return error
            if inspect.isawaitable(found):
                await found
    except Exception as error:
        return error
    return None


def _call(handler: _Callable, event: object) -> tuple[Any, Exception | None]:
    try:
        return handler(event), None
    except Exception as error:
        return None, error
