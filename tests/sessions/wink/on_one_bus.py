"""The Session and the MainLoop of weakincentives on Postroad's bus of one process; exits 0 when all holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tests.sessions.wink.values import TELEMETRY, Finding
from weakincentives.adapters.core import PromptResponse
from weakincentives.runtime import MainLoop, MainLoopCompleted, MainLoopFailed, MainLoopRequest
from weakincentives.runtime.events import InProcessEventBus as TheirBus, PromptExecuted, PromptRendered, ToolInvoked
from weakincentives.runtime.session import Session, reducer

from postroad.bus import InProcessEventBus


@dataclass(frozen=True)
class AddStep:
    step: str


@dataclass(frozen=True)
class Plan:
    steps: tuple[str, ...] = ()

    @reducer(on=AddStep)  # type: ignore[untyped-decorator]  # weakincentives lives in another environment
    def add(self, event: AddStep) -> Plan:
        return replace(self, steps=(*self.steps, event.step))


class Adapter:
    def evaluate(self, prompt: str, *, session: Any, **limits: Any) -> Any:
        if prompt == "fail":
            raise ValueError("no such file")
        session.event_bus.publish(TELEMETRY[1])
        return PromptResponse(prompt_name="review", text=prompt, output=Finding(prompt))


class Loop(MainLoop[str, Finding]):  # type: ignore[misc]  # weakincentives lives in another environment
    def create_prompt(self, request: str) -> Any:
        return request

    def create_session(self) -> Any:
        return Session(bus=self._bus)


def a_session_reduces_what_the_bus_brings() -> None:
    bus = InProcessEventBus()
    session = Session(bus=bus)
    session.install(Plan, initial=Plan)

    results = [bus.publish(event) for event in TELEMETRY]
    session.broadcast(AddStep("research"))

    assert all(result.ok and result.handled_count == 1 for result in results)
    assert [session[cls].latest() for cls in (PromptRendered, ToolInvoked, PromptExecuted)] == list(TELEMETRY)
    assert session[Finding].all() == (Finding("tool"), Finding("a"), Finding("b"))
    assert session[Plan].latest() == Plan(("research",))


def a_main_loop_answers_as_on_its_own_bus() -> None:
    """Compared, since on some Pythons its loop fails to make the answer, whatever the bus."""
    ours, theirs = map(outcomes, (InProcessEventBus(), TheirBus()))

    assert ours == theirs
    assert "ValueError('no such file')" in ours[-1]


def outcomes(bus: Any) -> list[str]:
    answers: list[Any] = []
    for cls in (MainLoopCompleted, MainLoopFailed):
        bus.subscribe(cls, answers.append)
    Loop(adapter=Adapter(), bus=bus)
    results = [bus.publish(MainLoopRequest(request=request)) for request in ("main.py", "fail")]
    seen = [(result.ok, result.handled_count, [repr(failure.error) for failure in result.errors]) for result in results]
    return [repr(seen), *(repr(getattr(answer, "response", getattr(answer, "error", None))) for answer in answers)]


if __name__ == "__main__":
    a_session_reduces_what_the_bus_brings()
    a_main_loop_answers_as_on_its_own_bus()
