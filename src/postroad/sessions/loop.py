"""The main loop: receives requests from a bus, has an adapter evaluate them and publishes the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from postroad.bus import BusConfig, EventBus, EventHandler, PublishResult
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import DeadlineExceeded, InvalidMessage
from postroad.receiving import LoopThread, Result, completed, context_of, is_async, to_its_end
from postroad.sessions.session import Session
from postroad.sessions.vocabulary import (
    Budget,
    MainLoopCompleted,
    MainLoopConfig,
    MainLoopFailed,
    MainLoopRequest,
    PromptResponse,
    checked_deadline,
    registry_of,
)

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")


class Adapter(Protocol):
    """Evaluates prompts. `deadline=` and `budget=` are passed if there are such limits."""

    def evaluate(self, prompt: Any, *, session: Any, **limits: Any) -> Any:
        """Return the response to `prompt` in `session`, or await it; `limits` has the deadline and the budget."""
        ...


class MainLoop(ABC, Generic[RequestT, OutputT]):
    """Answers each `MainLoopRequest` on its bus with `MainLoopCompleted` or `MainLoopFailed`.

    A subclass defines how a request becomes a prompt, and the session that the work happens in. If the adapter's
    `evaluate` is async, it runs on the event loop in which the bus's receiver was started, or on one of the bus.

    Args:
        adapter: Evaluates the prompts.
        bus: The bus that requests come from.
        response_bus: The bus that answers are published to; by default the same.
        config: The limits of requests that have none of their own.
        clock: Another clock, for tests.

    Example:
        class Reviews(MainLoop[Review, str]):
            def create_prompt(self, request: Review) -> str:
                return f"Review this: {request.text}"

            def create_session(self) -> Session:
                return Session()

        with Reviews.serve(backend, adapter=adapter, name="review"):
            ...
    """

    def __init__(
        self,
        *,
        adapter: Adapter,
        bus: EventBus,
        response_bus: EventBus | None = None,
        config: MainLoopConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._adapter = adapter
        self._bus = bus
        self._response_bus = bus if response_bus is None else response_bus
        self._config = config or MainLoopConfig()
        self._clock = clock
        self._opened = ExitStack()
        registry_of(bus)
        registry_of(self._response_bus)
        self._is_async = is_async(adapter.evaluate)
        self._loop_thread = LoopThread()
        self._handler: EventHandler = self.ahandle_request if self._is_async else self.handle_request
        bus.subscribe(MainLoopRequest, self._handler)

    @abstractmethod
    def create_prompt(self, request: RequestT) -> Any:
        """Return the prompt that the adapter evaluates for `request`."""

    @abstractmethod
    def create_session(self) -> Session:
        """Return the session that the work happens in; each request gets its own."""

    @classmethod
    def serve(
        cls,
        backend: Any,
        *,
        adapter: Adapter,
        name: str = "mainloop",
        group: str = "workers",
        config: MainLoopConfig | None = None,
        bus_config: BusConfig | None = None,
    ) -> Self:
        """Return a started loop that shares the requests of this name with the other workers of its group.

        Args:
            backend: What `postroad.connect` returns.
            adapter: Evaluates the prompts.
            name: The name of the main loop; its topics are `NAME-requests` and `NAME-responses`.
            group: The group that shares the requests.
            config: The limits of requests that have none of their own.
            bus_config: The settings of both buses.
        """
        requests = backend.bus(f"{name}-requests", group, config=bus_config)
        responses = backend.bus(f"{name}-responses", config=bus_config)
        loop = cls(adapter=adapter, bus=requests, response_bus=responses, config=config)
        for bus in (responses, requests):
            loop._opened.callback(bus.close)
        try:
            requests.start_receiver()
        except BaseException:
            loop.close()
            raise
        return loop

    def execute(
        self, request: RequestT, *, budget: Budget | None = None, deadline: datetime | None = None
    ) -> tuple[PromptResponse[OutputT], Session]:
        """Have the adapter evaluate the request's prompt in a new session, which the caller closes.

        Args:
            request: The request.
            budget: The tokens that it may use; by default those of the config.
            deadline: The time after which no work begins; by default that of the config.
        """
        return self._complete(self.aexecute(request, budget=budget, deadline=deadline))

    async def aexecute(
        self, request: RequestT, *, budget: Budget | None = None, deadline: datetime | None = None
    ) -> tuple[PromptResponse[OutputT], Session]:
        """Do what `execute` does, and await an adapter that is async."""
        latest = checked_deadline(deadline) or self._config.deadline
        if latest is not None and latest <= self._clock.now():
            raise DeadlineExceeded(f"the deadline {latest.isoformat()} had passed before the work began")
        limits = {"deadline": latest, "budget": budget or self._config.budget}
        limits = {name: value for name, value in limits.items() if value is not None}
        session = await self._run(self.create_session)
        try:
            evaluated = self._adapter.evaluate(self.create_prompt(request), session=session, **limits)
            response: PromptResponse[OutputT] = await evaluated if self._is_async else evaluated
        except BaseException:
            await self._run(session.close)
            raise
        return response, session

    def handle_request(self, event: object) -> None:
        """Answer the request in `event`. If the answer cannot be published, the request is delivered again."""
        self._complete(self._answer(event, self._execute))

    async def ahandle_request(self, event: object) -> None:
        """Answer the request in `event` as `handle_request` does, with an adapter that is async."""
        await self._answer(event, self.aexecute)

    async def _execute(self, request: RequestT, **limits: Any) -> tuple[PromptResponse[OutputT], Session]:
        # A subclass may override `execute`.
        return self.execute(request, **limits)

    async def _answer(
        self, event: object, execute: Callable[..., Awaitable[tuple[PromptResponse[OutputT], Session]]]
    ) -> None:
        asked = cast(MainLoopRequest[RequestT], event)
        try:
            response, session = await execute(asked.request, budget=asked.budget, deadline=asked.deadline)
        except Exception as error:
            await self._run(self._fail, asked, error)
            return
        await self._run(session.close)
        completed_event = MainLoopCompleted(asked.request_id, response, session.session_id)
        result = await self._run(self._response_bus.publish, completed_event)
        if refused := _refusal(result):
            # The same answer would come again and could never be sent, so its error is the answer.
            await self._run(self._fail, asked, refused)
        else:
            result.raise_if_errors()

    async def _run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function that may block: in a thread if an event loop must go on."""
        return await to_its_end(function, *arguments) if self._is_async else function(*arguments)

    def _complete(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return cast(Result, self._loop_thread.run(coroutine)) if self._is_async else completed(coroutine)

    def close(self) -> None:
        """Take no more requests, and close what `serve` opened. Closing twice changes nothing."""
        self._bus.unsubscribe(MainLoopRequest, self._handler)
        self._opened.close()

    def _fail(self, asked: MainLoopRequest[RequestT], error: Exception) -> None:
        self._response_bus.publish(MainLoopFailed(asked.request_id, error)).raise_if_errors()
        context = context_of(asked)
        if context is None or not context.remote:
            # The publisher waits on this thread and gets the error in its result.
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refusal(result: PublishResult[Any]) -> InvalidMessage | None:
    """Return why the event of the result can never be sent, if that is so."""
    errors = [failure.error for failure in result.errors]
    causes = [found for error in errors for found in (error, error.__cause__)]
    return next((found for found in causes if isinstance(found, InvalidMessage)), None)
