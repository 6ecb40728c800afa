"""How a session begins, is copied and ends."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.sessions.plans import AddStep, DropSteps, Plan

from postroad.bus import EventHandler, InProcessEventBus
from postroad.sessions import (
    Session,
)


def test_a_session_knows_its_parent_its_children_and_its_tags(bus: InProcessEventBus) -> None:
    parent = Session(bus=bus, tags={"loop": "review"})
    child = Session(bus=bus, parent=parent)

    assert child.parent is parent
    assert parent.children == (child,)
    assert dict(parent.tags) == {"loop": "review"}
    assert parent.session_id != child.session_id


def test_a_closed_session_hears_nothing_and_can_still_be_read(bus: InProcessEventBus) -> None:
    parent = Session(bus=bus)
    session = Session(bus=bus, parent=parent)
    session.install(Plan, initial=Plan)
    session.broadcast(AddStep("heard"))

    session.close()
    session.close()
    result = bus.publish(AddStep("unheard"))

    assert result.handled_count == 0
    assert session[Plan].latest() == Plan(("heard",))
    assert parent.children == ()
    with pytest.raises(RuntimeError, match="closed"):
        session.broadcast(AddStep("too late"))


@pytest.mark.parametrize("early", [True, False], ids=["before it is subscribed", "after it is subscribed"])
def test_a_session_that_is_closed_while_it_begins_to_follow_hears_nothing(early: bool) -> None:
    class ClosingBus(InProcessEventBus):
        def subscribe(self, event_type: type[object], handler: EventHandler) -> None:
            if event_type is AddStep and early:
                session.close()
            super().subscribe(event_type, handler)
            if event_type is AddStep and not early:
                session.close()

    bus = ClosingBus()
    session = Session(bus=bus)

    session.install(Plan, initial=Plan)

    assert bus.subscriptions(AddStep) == ()
    assert bus.types == []


def test_a_with_block_closes_it(bus: InProcessEventBus) -> None:
    with Session(bus=bus) as session:
        session.install(Plan)

    assert bus.publish(AddStep("unheard")).handled_count == 0


def test_a_clone_goes_its_own_way_on_another_bus(bus: InProcessEventBus) -> None:
    session = Session(bus=bus, tags={"a": "b"})
    session.install(Plan, initial=Plan)
    session.broadcast(AddStep("together"))

    clone = session.clone(bus=InProcessEventBus())
    clone.broadcast(AddStep("alone"))

    assert clone[Plan].latest() == Plan(("together", "alone"))
    assert session[Plan].latest() == Plan(("together",))
    assert (clone.session_id, clone.tags, clone.created_at) == (session.session_id, session.tags, session.created_at)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tags": {"a": 1}}, TypeError),
        ({"tags": ["a"]}, TypeError),
        ({"parent": "nobody"}, TypeError),
        ({"bus": "no bus"}, TypeError),
        ({"created_at": "today"}, TypeError),
        ({"created_at": datetime(2026, 1, 1)}, ValueError),
        ({"session_id": "no uuid"}, TypeError),
        ({"scope": "mine"}, ValueError),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        Session(**arguments)  # type: ignore[arg-type]  # the test is about it


def test_the_moment_of_its_making_may_be_given() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)

    assert Session(created_at=moment).created_at == moment


def test_dropping_and_adding_steps_are_told_apart(session: Session) -> None:
    session.install(Plan, initial=Plan)

    for event in (AddStep("one"), DropSteps(), AddStep("two")):
        session.broadcast(event)

    assert session[Plan].latest() == Plan(("two",))


class Indescribable(InProcessEventBus):
    """A bus that also makes first states; describing it fails."""

    def __call__(self) -> Plan:
        return Plan()

    def __repr__(self) -> str:
        raise RuntimeError("described")


def test_arguments_that_are_accepted_are_not_described() -> None:
    session = Session(bus=Indescribable())
    session.install(Plan, initial=Indescribable())

    session.broadcast(AddStep("one"))

    assert session[Plan].latest() == Plan(("one",))
