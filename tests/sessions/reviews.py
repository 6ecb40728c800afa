"""A main loop that reviews files, as the tests of main loops need one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroad import event
from postroad.bus import EventBus, HandlerFailure, PublishResult
from postroad.sessions import MainLoop, PromptResponse, Session


@event(name="tests.sessions:ReviewRequest")
class ReviewRequest:
    file: str


@event(name="tests.sessions:ReviewResult")
class ReviewResult:
    findings: list[str]


class Reviewer:
    """An adapter that remembers how it was called."""

    def __init__(self, work: Callable[[str], object] = lambda file: ReviewResult([f"{file} is fine"])) -> None:
        self.calls: list[dict[str, Any]] = []
        self._work = work

    def evaluate(self, prompt: str, *, session: Session, **limits: Any) -> PromptResponse[Any]:
        self.calls.append({"prompt": prompt, "session": session, **limits})
        return PromptResponse("review", output=self._work(prompt))


class ReviewLoop(MainLoop[ReviewRequest, ReviewResult]):
    """Reviews one file a request."""

    def create_prompt(self, request: ReviewRequest) -> str:
        return request.file

    def create_session(self) -> Session:
        return Session(bus=self._bus, tags={"loop": "review"})


class DeadBus:
    """A bus whose transport never works."""

    def __init__(self) -> None:
        self.published: list[object] = []

    def subscribe(self, event_type: type[object], handler: Callable[[Any], Any]) -> None:
        """Nothing ever arrives."""

    def unsubscribe(self, event_type: type[object], handler: Callable[[Any], Any]) -> bool:
        return False

    def publish(self, event: object) -> PublishResult[Any]:
        self.published.append(event)
        return PublishResult(event, (), (HandlerFailure(self.publish, ConnectionError("no network")),), remote="failed")


def failing(error: Exception) -> Callable[[str], object]:
    """Work that raises."""

    def work(file: str) -> object:
        raise error

    return work


def heard(bus: EventBus, *types: type) -> list[Any]:
    """What is published on the bus from now on, of these types."""
    events: list[Any] = []
    for cls in types:
        bus.subscribe(cls, events.append)
    return events
