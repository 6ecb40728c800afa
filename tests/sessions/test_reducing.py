"""Each reducer takes each step once, and a failing one stops no other."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from tests.sessions.plans import AddStep, Count, Identified, Named, Note, Numbered, Plan, Tally, Texts, names_of

from postroad.bus import InProcessEventBus
from postroad.sessions import (
    Session,
    reducer,
)


@dataclass(frozen=True)
class Fragile:
    steps: tuple[str, ...] = ()

    @reducer(on=AddStep)
    def add(self, event: AddStep) -> Fragile:
        if event.step == "raise":
            raise ValueError("cannot")
        return Plan() if event.step == "another" else Fragile((*self.steps, event.step))  # type: ignore[return-value]  # it fails


@pytest.mark.parametrize(("step", "error"), [("raise", ValueError), ("another", TypeError)])
def test_the_state_is_kept_the_others_go_on_and_the_delivery_fails(
    session: Session, step: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    session.install(Fragile, initial=Fragile)
    session.install(Count, initial=Count)
    session.broadcast(AddStep("fine"))

    result = session.broadcast(AddStep(step))

    assert session[Fragile].latest() == Fragile(("fine",))
    assert session[Count].latest() == Count(2)
    assert [type(failure.error) for failure in result.errors] == [error]
    assert names_of(caplog.records) == ["session_reducer_failed", "bus_handler_failed"]


def test_several_failures_come_together(session: Session) -> None:
    session.install(Fragile, initial=Fragile)
    session[Note].register(AddStep, lambda values, event: [Plan()])  # type: ignore[list-item]  # what fails

    with pytest.raises(ExceptionGroup) as caught:
        session.reduce(AddStep("raise"))

    assert [type(error) for error in caught.value.exceptions] == [ValueError, TypeError]
    assert session[Note].all() == ()


def test_a_retry_runs_the_failed_reducer_only(session: Session) -> None:
    broken = [True]

    def fragile(values: tuple[Note, ...], event: Named) -> list[Note]:
        if broken.pop() if broken else False:
            raise ConnectionError("not now")
        return [*values, Note(event.text)]

    identified = Identified("text")
    session[Plan].register(Identified, lambda values, event: [*values, Plan((event.text,))])
    session[Note].register(Identified, fragile)
    with pytest.raises(ConnectionError):
        session.reduce(identified)

    session.reduce(identified)

    assert session[Note].all() == (Note("text"),)
    assert session[Plan].all() == (Plan(("text",)),)


def test_an_event_id_is_applied_once(bus: InProcessEventBus, session: Session) -> None:
    session.install(Texts, initial=Texts)

    bus.publish(Identified("a"))
    bus.publish(Identified("a"))

    assert session[Texts].latest() == Texts(("a",))


def test_equal_events_without_an_id_are_two_events(session: Session) -> None:
    session.install(Plan, initial=Plan)

    session.broadcast(AddStep("again"))
    session.broadcast(AddStep("again"))

    assert session[Plan].latest() == Plan(("again", "again"))


def test_ten_thousand_ids_are_remembered_and_no_more(session: Session) -> None:
    session.install(Tally, initial=Tally)
    for number in range(10_001):
        session.reduce(Numbered(number))

    session.reduce(Numbered(1))
    remembered = session[Tally].latest()
    session.reduce(Numbered(0))

    assert remembered == Tally(10_001)
    assert session[Tally].latest() == Tally(10_002)


def test_reductions_of_one_session_never_interleave(session: Session) -> None:
    inside, most = [0], [0]

    def slow(values: tuple[Count, ...], event: AddStep) -> list[Count]:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.001)
        inside[0] -= 1
        return [Count(values[-1].seen + 1)]

    session[Count].seed(Count())
    session[Count].register(AddStep, slow)
    threads = [threading.Thread(target=session.broadcast, args=(AddStep("x"),)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1]
    assert session[Count].latest() == Count(20)


def test_a_reducer_that_publishes_to_its_own_session_is_told_so(session: Session) -> None:
    def publishing(values: tuple[Note, ...], event: AddStep) -> tuple[Note, ...]:
        session.broadcast(Note("inside")).raise_if_errors()
        return values

    session[Note].register(AddStep, publishing)

    result = session.broadcast(AddStep("x"))

    assert "observer" in str(result.errors[0])
    assert session[Note].all() == ()
