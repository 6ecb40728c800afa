"""The client of a main loop: sends requests to it, wherever it runs, and waits for the answers."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from typing import Any, Self, cast
from uuid import UUID, uuid4

from postroad.bus import BusConfig, EventBus, PublishResult
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import RequestFailed, RequestTimeout
from postroad.sessions.vocabulary import Budget, MainLoopCompleted, MainLoopFailed, MainLoopRequest, known, registry_of


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for its answer.

    Attributes:
        request_id: Its id, which the answer names.
        future: Completed with the answer, failed with `RequestFailed`, or cancelled when the client is closed.
        submitted_at: When it was sent.
    """

    request_id: UUID
    future: Future[MainLoopCompleted[Any]]
    submitted_at: datetime


class SQSMainLoopClient:
    """Sends requests on one bus and receives the answers on another; any two buses will do.

    Args:
        request_bus: The bus that the main loop receives requests from.
        response_bus: The bus that it publishes answers to.
        clock: Another clock, for tests.

    Example:
        with MainLoopClient.connect(backend, name="review") as client:
            print(client.submit(Review("text")).response.text)
    """

    def __init__(self, *, request_bus: EventBus, response_bus: EventBus, clock: Clock | None = None) -> None:
        self._request_bus = request_bus
        self._response_bus = response_bus
        self._clock = clock or SYSTEM_CLOCK
        self._pending: dict[UUID, PendingRequest] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._opened = ExitStack()
        self._registry = registry_of(request_bus)
        registry_of(response_bus)
        response_bus.subscribe(MainLoopCompleted, self._on_completed)
        response_bus.subscribe(MainLoopFailed, self._on_failed)

    @classmethod
    def connect(cls, backend: Any, *, name: str = "mainloop") -> Self:
        """Return a started client of the main loops of this name; it receives only answers to its own requests.

        Args:
            backend: What `postroad.connect` returns.
            name: The name that `MainLoop.serve` was given.
        """
        topic = f"{name}-requests"
        # While nothing serves the topic yet, the workers' queue is made to keep the requests.
        group = None if backend.topic(topic).subscriptions() else "workers"
        # The id is the client's own, whatever the environment says, because answers are addressed to it.
        requests = backend.bus(topic, group, config=BusConfig.from_env(publisher_id=str(uuid4())))
        responses = backend.bus(f"{name}-responses", attributes={"ReplyTo": [requests.publisher_id]})
        client = cls(request_bus=requests, response_bus=responses)
        for bus in (responses, requests):
            client._opened.callback(bus.close)
        try:
            responses.start_receiver()
        except BaseException:
            client.close()
            raise
        return client

    def submit(
        self, request: Any, *, timeout: float = 300.0, budget: Budget | None = None, deadline: datetime | None = None
    ) -> MainLoopCompleted[Any]:
        """Send a request and wait for the answer.

        Args:
            request: What `create_prompt` of the main loop takes; a dataclass or a JSON value.
            timeout: Seconds to wait.
            budget: The tokens that the request may use; by default those of the main loop's config.
            deadline: The time after which no work begins; by default that of the main loop's config.

        Raises:
            RequestFailed: The answer is an error, which is its cause.
            RequestTimeout: No answer came in time.
        """
        with self._request(request, timeout, budget, deadline) as (event, pending):
            give_up_at = time.monotonic() + timeout
            _check(self._request_bus.publish(event), pending)
            return pending.future.result(max(0.0, give_up_at - time.monotonic()))

    async def asubmit(
        self, request: Any, *, timeout: float = 300.0, budget: Budget | None = None, deadline: datetime | None = None
    ) -> MainLoopCompleted[Any]:
        """Do what `submit` does without blocking the loop: a thread publishes, and the answer is awaited."""
        with self._request(request, timeout, budget, deadline) as (event, pending):
            async with asyncio.timeout(timeout):
                _check(await asyncio.to_thread(self._request_bus.publish, event), pending)
                return await asyncio.wrap_future(pending.future)

    @contextmanager
    def _request(
        self, request: Any, timeout: Any, budget: Budget | None, deadline: datetime | None
    ) -> Iterator[tuple[MainLoopRequest[Any], PendingRequest]]:
        """Wait for the answer to a request inside the block."""
        if not isinstance(timeout, int | float) or math.isnan(timeout) or timeout <= 0:
            raise ValueError(f"timeout: {timeout!r} is not a number of seconds above 0")
        # Any bus may deliver answers; one that receives knows whether it waits for this very call.
        if getattr(self._response_bus, "is_receiving_here", False):
            raise RuntimeError("a handler on the client's own receiver thread would wait for ever; submit elsewhere")
        if is_dataclass(request) and not isinstance(request, type):
            known(type(request), self._registry)
        event = MainLoopRequest(request, budget, deadline)
        pending = PendingRequest(event.request_id, Future(), self._clock.now())
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            self._pending[event.request_id] = pending
        try:
            yield event, pending
        except TimeoutError as error:
            raise RequestTimeout(event.request_id, timeout) from error
        finally:
            self._forget(event.request_id)

    def pending(self) -> tuple[PendingRequest, ...]:
        """Return the requests that wait for an answer, oldest first."""
        with self._lock:
            return tuple(self._pending.values())

    def close(self) -> None:
        """Receive no more answers and cancel the requests that wait. Closing twice changes nothing."""
        with self._lock:
            self._closed = True
            waiting = list(self._pending.values())
            self._pending.clear()
        self._response_bus.unsubscribe(MainLoopCompleted, self._on_completed)
        self._response_bus.unsubscribe(MainLoopFailed, self._on_failed)
        for pending in waiting:
            pending.future.cancel()
        self._opened.close()

    def _on_completed(self, event: object) -> None:
        completed = cast(MainLoopCompleted[Any], event)
        pending = self._forget(completed.request_id)
        if pending is not None and pending.future.set_running_or_notify_cancel():
            pending.future.set_result(completed)

    def _on_failed(self, event: object) -> None:
        failed = cast(MainLoopFailed, event)
        pending = self._forget(failed.request_id)
        if pending is not None and pending.future.set_running_or_notify_cancel():
            error = RequestFailed(failed.request_id, failed.error)
            error.__cause__ = failed.error
            pending.future.set_exception(error)

    def _forget(self, request_id: UUID) -> PendingRequest | None:
        with self._lock:
            return self._pending.pop(request_id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


MainLoopClient = SQSMainLoopClient


def _check(result: PublishResult[Any], pending: PendingRequest) -> None:
    """Raise the error if the request was not sent, unless there is an answer already."""
    if pending.future.done() or result.ok:
        return
    if len(result.errors) == 1:
        raise result.errors[0].error
    result.raise_if_errors()
