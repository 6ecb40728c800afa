"""Slices that declare their own reducers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.sessions.plans import AddStep, Identified, Note, Plan, Texts

from postroad import EventRegistry
from postroad.bus import InProcessEventBus
from postroad.sessions import (
    Session,
    reducer,
)


def test_an_installed_slice_follows_its_events(session: Session) -> None:
    session.install(Plan)
    session[Plan].seed(Plan())

    session.broadcast(AddStep("research"))
    session.broadcast(AddStep("write"))

    assert session[Plan].all() == (Plan(("research", "write")),)


def test_a_slice_with_neither_seed_nor_initial_state_ignores_events(session: Session) -> None:
    session.install(Plan)

    result = session.broadcast(AddStep("research"))

    assert result.ok
    assert session[Plan].all() == ()


def test_the_initial_state_is_made_when_an_event_needs_it(session: Session) -> None:
    session.install(Plan, initial=lambda: Plan(("begin",)))

    session.broadcast(AddStep("research"))

    assert session[Plan].latest() == Plan(("begin", "research"))


def test_an_ignored_event_is_applied_when_it_comes_again_after_the_seed(bus: InProcessEventBus) -> None:
    session = Session(bus=bus)
    session.install(Texts, initial=None)
    event = Identified("once")
    session.reduce(event)

    session[Texts].seed(Texts())
    session.reduce(event)

    assert session[Texts].latest() == Texts(("once",))


def test_installing_again_reduces_each_event_once(session: Session) -> None:
    session.install(Plan)
    session.install(Plan, initial=Plan)

    session.broadcast(AddStep("research"))

    assert session[Plan].latest() == Plan(("research",))


def test_it_registers_the_class_and_its_events_in_the_registry_of_the_bus() -> None:
    registry = EventRegistry()

    Session(bus=InProcessEventBus(registry=registry)).install(Plan)

    assert registry.find("tests.sessions:AddStep") is AddStep
    assert registry.known_name(Plan) == "tests.sessions.plans:Plan"


@pytest.mark.parametrize("cls", [object, int, Note("an instance"), None])
def test_what_is_no_dataclass_is_refused(session: Session, cls: type) -> None:
    with pytest.raises(TypeError, match="dataclass"):
        session.install(cls)


def test_a_dataclass_that_can_change_in_place_is_refused(session: Session) -> None:
    @dataclass
    class Mutable:
        @reducer(on=AddStep)
        def add(self, event: AddStep) -> Mutable:
            return self

    with pytest.raises(TypeError, match="frozen"):
        session.install(Mutable)


def test_a_class_without_reducers_is_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="no method with @reducer"):
        session.install(Note)


def test_two_reducers_for_one_event_are_refused(session: Session) -> None:
    @dataclass(frozen=True)
    class Twice:
        @reducer(on=AddStep)
        def one(self, event: AddStep) -> Twice:
            return self

        @reducer(on=AddStep)
        def other(self, event: AddStep) -> Twice:
            return self

    with pytest.raises(ValueError, match="two reducers for AddStep"):
        session.install(Twice)


def test_the_initial_state_is_made_by_a_function(session: Session) -> None:
    with pytest.raises(TypeError, match="initial"):
        session.install(Plan, initial=Plan())  # type: ignore[arg-type]  # the test is about it


def test_a_reducer_is_for_a_class_of_events() -> None:
    with pytest.raises(TypeError, match="class"):
        reducer(on="AddStep")  # type: ignore[arg-type]  # the test is about it
