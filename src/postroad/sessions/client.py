"""Asks a main loop, wherever it runs, and waits for its answer."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID, uuid4

from postroad.bus import EventBus, PublishResult, SQSEventBusConfig
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import RequestFailed, RequestTimeout
from postroad.sessions.requests import Budget, MainLoopCompleted, MainLoopFailed, MainLoopRequest
from postroad.sessions.snapshots import BusBackend, ReceivingBus, closed_on_failure
from postroad.sessions.vocabulary import known, registry_of


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for its answer."""

    request_id: UUID
    future: Future[MainLoopCompleted[Any]]
    submitted_at: datetime


class SQSMainLoopClient:
    """Submits requests on one bus and hears the answers on another; any two buses will do."""

    def __init__(self, *, request_bus: EventBus, response_bus: EventBus, clock: Clock | None = None) -> None:
        self._request_bus = request_bus
        self._response_bus = response_bus
        self._clock = clock or SYSTEM_CLOCK
        self._pending: dict[UUID, PendingRequest] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._releases: list[Callable[[], None]] = []
        self._registry = registry_of(request_bus)
        registry_of(response_bus)
        response_bus.subscribe(MainLoopCompleted, self._on_completed)
        response_bus.subscribe(MainLoopFailed, self._on_failed)

    @classmethod
    def connect(cls, backend: BusBackend, *, name: str = "mainloop") -> Self:
        """A started client of the main loops of this name; only answers to its own requests reach it."""
        requests = _request_bus(backend, f"{name}-requests")
        responses = backend.bus(f"{name}-responses", attributes={"ReplyTo": [requests.publisher_id]})
        client = cls(request_bus=requests, response_bus=responses)
        client._releases += [requests.close, responses.close]
        with closed_on_failure(client):
            responses.start_receiver()
        return client

    def submit(
        self, request: Any, *, timeout: float = 300.0, budget: Budget | None = None, deadline: datetime | None = None
    ) -> MainLoopCompleted[Any]:
        """Wait for the answer: `RequestFailed` when it is an error, `RequestTimeout` when none comes in time."""
        _refuse_no_time(timeout)
        self._refuse_to_wait_for_itself()
        give_up_at = time.monotonic() + timeout
        event = self._event(request, budget, deadline)
        pending = self._expect(event)
        try:
            _check(self._request_bus.publish(event), pending)
            return pending.future.result(max(0.0, give_up_at - time.monotonic()))
        except TimeoutError as error:
            raise RequestTimeout(event.request_id, timeout) from error
        finally:
            self._forget(event.request_id)

    async def asubmit(
        self, request: Any, *, timeout: float = 300.0, budget: Budget | None = None, deadline: datetime | None = None
    ) -> MainLoopCompleted[Any]:
        """The same without blocking the loop: publishing runs in a thread, the answer is awaited."""
        _refuse_no_time(timeout)
        self._refuse_to_wait_for_itself()
        event = self._event(request, budget, deadline)
        pending = self._expect(event)
        try:
            async with asyncio.timeout(timeout):
                _check(await asyncio.to_thread(self._request_bus.publish, event), pending)
                return await asyncio.wrap_future(pending.future)
        except TimeoutError as error:
            raise RequestTimeout(event.request_id, timeout) from error
        finally:
            self._forget(event.request_id)

    def pending(self) -> tuple[PendingRequest, ...]:
        """The requests that wait for an answer, oldest first."""
        with self._lock:
            return tuple(self._pending.values())

    def close(self) -> None:
        """Hear no more answers and cancel what waits. Closing twice changes nothing."""
        with self._lock:
            self._closed = True
            waiting = list(self._pending.values())
            self._pending.clear()
        self._response_bus.unsubscribe(MainLoopCompleted, self._on_completed)
        self._response_bus.unsubscribe(MainLoopFailed, self._on_failed)
        for pending in waiting:
            pending.future.cancel()
        releases, self._releases = self._releases, []
        for release in releases:
            release()

    def _refuse_to_wait_for_itself(self) -> None:
        # Any bus may bring answers; one that receives knows whether it waits for this very call.
        if getattr(self._response_bus, "is_receiving_here", False):
            raise RuntimeError("a handler on the client's own receiver thread would wait for ever; submit elsewhere")

    def _event(self, request: Any, budget: Budget | None, deadline: datetime | None) -> MainLoopRequest[Any]:
        if is_dataclass(request) and not isinstance(request, type):
            known(type(request), self._registry)
        return MainLoopRequest(request, budget, deadline)

    def _expect(self, event: MainLoopRequest[Any]) -> PendingRequest:
        pending = PendingRequest(event.request_id, Future(), self._clock.now())
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            self._pending[event.request_id] = pending
        return pending

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


MainLoopClient = SQSMainLoopClient


def _request_bus(backend: BusBackend, topic: str) -> ReceivingBus:
    """The bus that requests go out on. While nobody serves the topic yet, the workers' queue is made to keep them."""
    group = None if backend.topic(topic).subscriptions() else "workers"
    # An id of its own, whatever the environment says: answers find their way by it.
    return backend.bus(topic, group, config=SQSEventBusConfig.from_env(publisher_id=str(uuid4())))


def _refuse_no_time(timeout: Any) -> None:
    if not isinstance(timeout, int | float) or math.isnan(timeout) or timeout <= 0:
        raise ValueError(f"timeout: {timeout!r} is not a number of seconds above 0")


def _check(result: PublishResult, pending: PendingRequest) -> None:
    """Raise why the request did not go out. An answer that is there already says more than that."""
    if pending.future.done() or result.ok:
        return
    if len(result.errors) == 1:
        raise result.errors[0].error
    result.raise_if_errors()
