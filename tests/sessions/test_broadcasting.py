"""Broadcasting reaches every session once; telemetry brings values along."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from tests.sessions.plans import AddStep, Count, Named, Note, Plan

from postroad.bus import EventBus, InProcessEventBus
from postroad.sessions import (
    PromptExecuted,
    PromptRendered,
    PromptResponse,
    Session,
    ToolInvoked,
    ToolResult,
)


def executed(output: object) -> PromptExecuted:
    return PromptExecuted("review", "openai", PromptResponse("review", output=output))


def invoked(value: object) -> ToolInvoked:
    return ToolInvoked("review", "openai", "search", {}, ToolResult("found", value))


def test_every_session_on_the_bus_reduces_the_event_once(bus: InProcessEventBus) -> None:
    here, there = Session(bus=bus), Session(bus=bus)
    for session in (here, there):
        session.install(Plan, initial=Plan)

    here.broadcast(AddStep("research"))

    assert here[Plan].latest() == there[Plan].latest() == Plan(("research",))


def test_an_event_is_published_once_and_what_arrives_is_not_published_again(bus: InProcessEventBus) -> None:
    seen: list[object] = []
    here, there = Session(bus=bus), Session(bus=bus)
    bus.subscribe(AddStep, seen.append)
    for session in (here, there):
        session.install(Plan, initial=Plan)

    here.broadcast(AddStep("research"))

    assert seen == [AddStep("research")]


def test_an_event_without_a_reducer_is_appended_to_its_own_slice(session: Session) -> None:
    session.broadcast(Note("a"))
    session.broadcast(Note("b"))

    assert session[Note].all() == (Note("a"), Note("b"))


def test_reducing_is_for_this_session_alone(bus: InProcessEventBus) -> None:
    here, there = Session(bus=bus), Session(bus=bus)
    for session in (here, there):
        session.install(Plan, initial=Plan)

    here.reduce(AddStep("research"))

    assert here[Plan].latest() == Plan(("research",))
    assert there[Plan].latest() is None


@pytest.mark.parametrize("event", [None, 5, "text", Note])
def test_what_is_no_event_is_refused(session: Session, event: object) -> None:
    with pytest.raises(TypeError, match="dataclass"):
        session.broadcast(event)
    with pytest.raises(TypeError, match="dataclass"):
        session.reduce(event)


def test_a_session_without_a_bus_has_one_of_its_own() -> None:
    session = Session()

    session.broadcast(Note("a"))

    assert isinstance(session.event_bus, EventBus)
    assert session[Note].all() == (Note("a"),)


def test_a_telemetry_event_without_a_reducer_is_appended(bus: InProcessEventBus, session: Session) -> None:
    rendered = PromptRendered("ns", "key", "review", "openai")

    for event in (rendered, executed(None), invoked(None)):
        bus.publish(event)

    assert session[PromptRendered].all() == (rendered,)
    assert len(session[PromptExecuted].all()) == len(session[ToolInvoked].all()) == 1


def test_a_telemetry_event_with_a_reducer_is_reduced_instead(bus: InProcessEventBus, session: Session) -> None:
    session[Count].register(ToolInvoked, lambda values, _: [Count(len(values) + 1)])

    bus.publish(invoked(None))

    assert session[Count].all() == (Count(1),)
    assert session[ToolInvoked].all() == ()


@pytest.mark.parametrize("make", [executed, invoked])
def test_a_dataclass_in_the_result_is_reduced_too(
    bus: InProcessEventBus, session: Session, make: Callable[[object], object]
) -> None:
    session.install(Plan, initial=Plan)

    bus.publish(make(AddStep("found")))
    bus.publish(make([AddStep("one"), Note("two"), "no dataclass", AddStep("three")]))

    assert session[Plan].latest() == Plan(("found", "one", "three"))
    assert session[Note].all() == (Note("two"),)


def test_a_repeated_telemetry_event_doubles_neither_itself_nor_its_values(
    bus: InProcessEventBus, session: Session
) -> None:
    event = executed([Note("a"), Note("a")])

    bus.publish(event)
    bus.publish(event)

    assert session[PromptExecuted].all() == (event,)
    assert session[Note].all() == (Note("a"), Note("a"))


def test_a_session_may_ignore_what_names_another_session(bus: InProcessEventBus) -> None:
    own, every = Session(bus=bus, scope="own"), Session(bus=bus)
    for session in (own, every):
        session[Note].register(Named, lambda values, event: [*values, Note(event.text)])

    for event in (Named("mine", own.session_id), Named("other", uuid4()), Named("nobody's")):
        bus.publish(event)

    assert own[Note].all() == (Note("mine"), Note("nobody's"))
    assert every[Note].all() == (Note("mine"), Note("other"), Note("nobody's"))
