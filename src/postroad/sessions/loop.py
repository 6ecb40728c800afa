"""The main loop: takes requests off a bus, lets an adapter work on them and publishes the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from postroad.bus import EventBus, PublishResult
from postroad.bus.config import SQSEventBusConfig
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.errors import DeadlineExceeded, InvalidMessage
from postroad.receiving import context_of
from postroad.sessions.grounds import BusBackend, closed_on_failure
from postroad.sessions.requests import (
    Budget,
    MainLoopCompleted,
    MainLoopConfig,
    MainLoopFailed,
    MainLoopRequest,
    checked_deadline,
)
from postroad.sessions.session import Session
from postroad.sessions.telemetry import PromptResponse
from postroad.sessions.vocabulary import registry_of

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")


class Adapter(Protocol):
    """What evaluates prompts. `deadline=` and `budget=` are passed when there are such limits."""

    def evaluate(self, prompt: Any, *, session: Any, **limits: Any) -> Any: ...


class MainLoop(ABC, Generic[RequestT, OutputT]):
    """Answers each `MainLoopRequest` on its bus with `MainLoopCompleted` or `MainLoopFailed`.

    A subclass says how a request becomes a prompt and what session the work happens in.
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
        self._releases: list[Callable[[], None]] = []
        registry_of(bus)
        registry_of(self._response_bus)
        bus.subscribe(MainLoopRequest, self.handle_request)

    @abstractmethod
    def create_prompt(self, request: RequestT) -> Any:
        """The prompt that the adapter evaluates for the request."""

    @abstractmethod
    def create_session(self) -> Session:
        """The session that the work happens in; each request gets its own."""

    @classmethod
    def serve(
        cls,
        backend: BusBackend,
        *,
        adapter: Adapter,
        name: str = "mainloop",
        group: str = "workers",
        config: MainLoopConfig | None = None,
        bus_config: SQSEventBusConfig | None = None,
    ) -> Self:
        """A started loop that shares the requests of this name with the other workers of its group."""
        requests = backend.bus(f"{name}-requests", group, config=bus_config)
        responses = backend.bus(f"{name}-responses", config=bus_config)
        loop = cls(adapter=adapter, bus=requests, response_bus=responses, config=config)
        loop._releases += [requests.close, responses.close]
        with closed_on_failure(loop):
            requests.start_receiver()
        return loop

    def execute(
        self, request: RequestT, *, budget: Budget | None = None, deadline: datetime | None = None
    ) -> tuple[PromptResponse[OutputT], Session]:
        """Let the adapter evaluate the request's prompt in a new session; the caller closes the session."""
        limits = self._limits(budget, deadline)
        session = self.create_session()
        try:
            response = self._adapter.evaluate(self.create_prompt(request), session=session, **limits)
        except BaseException:
            session.close()
            raise
        return response, session

    def handle_request(self, event: object) -> None:
        """Answer the request. An answer that cannot be published fails the delivery, so the request comes again."""
        asked = cast(MainLoopRequest[RequestT], event)
        try:
            response, session = self.execute(asked.request, budget=asked.budget, deadline=asked.deadline)
        except Exception as error:
            self._fail(asked, error)
            return
        session.close()
        result = self._response_bus.publish(MainLoopCompleted(asked.request_id, response, session.session_id))
        if refused := _refusal(result):
            # Working again would give the same answer, which can never be sent: say so instead.
            self._fail(asked, refused)
        else:
            result.raise_if_errors()

    def close(self) -> None:
        """Take no more requests; what `serve` opened is closed. Closing twice changes nothing."""
        self._bus.unsubscribe(MainLoopRequest, self.handle_request)
        releases, self._releases = self._releases, []
        for release in releases:
            release()

    def _limits(self, budget: Budget | None, deadline: datetime | None) -> dict[str, Any]:
        latest = checked_deadline(deadline) or self._config.deadline
        if latest is not None and latest <= self._clock.now():
            raise DeadlineExceeded(f"the deadline {latest.isoformat()} had passed before the work began")
        limits = {"deadline": latest, "budget": budget or self._config.budget}
        return {name: value for name, value in limits.items() if value is not None}

    def _fail(self, asked: MainLoopRequest[RequestT], error: Exception) -> None:
        self._response_bus.publish(MainLoopFailed(asked.request_id, error)).raise_if_errors()
        context = context_of(asked)
        if context is None or not context.remote:
            # The publisher is waiting on this thread: its result says what happened.
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _refusal(result: PublishResult) -> InvalidMessage | None:
    """Why the event of the result can never be sent, if so."""
    errors = [failure.error for failure in result.errors]
    causes = [found for error in errors for found in (error, error.__cause__)]
    return next((found for found in causes if isinstance(found, InvalidMessage)), None)
