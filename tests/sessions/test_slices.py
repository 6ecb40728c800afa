"""A slice: the values of one type in a session."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.sessions.plans import AddStep, Note, Plan

from postroad.sessions import (
    Session,
)


def test_a_slice_holds_values_of_its_type_oldest_first(session: Session) -> None:
    session[Note].seed([Note("a"), Note("b")])
    session[Note].append(Note("c"))

    assert session[Note].all() == (Note("a"), Note("b"), Note("c"))
    assert session[Note].latest() == Note("c")
    assert session[Note].where(lambda note: note.text < "c") == (Note("a"), Note("b"))


def test_an_empty_slice_has_no_latest_value(session: Session) -> None:
    assert session[Note].all() == ()
    assert session[Note].latest() is None


def test_seeding_puts_one_value_in_the_place_of_all(session: Session) -> None:
    session[Note].seed([Note("a"), Note("b")])

    session[Note].seed(Note("c"))

    assert session[Note].all() == (Note("c"),)


def test_clearing_removes_all_or_what_the_predicate_accepts(session: Session) -> None:
    session[Note].seed([Note("a"), Note("b")])

    session[Note].clear(lambda note: note.text == "a")
    some = session[Note].all()
    session[Note].clear()

    assert (some, session[Note].all()) == ((Note("b"),), ())


@pytest.mark.parametrize("change", [lambda s: s[Note].seed([Note("a"), Plan()]), lambda s: s[Note].append(Plan())])
def test_a_value_of_another_class_is_refused_and_changes_nothing(
    session: Session, change: Callable[[Session], None]
) -> None:
    session[Note].seed(Note("kept"))

    with pytest.raises(TypeError, match="Plan"):
        change(session)

    assert session[Note].all() == (Note("kept"),)


def test_only_dataclasses_have_slices(session: Session) -> None:
    with pytest.raises(TypeError, match="dataclass"):
        session[int]


def test_a_function_reduces_all_values_of_a_slice(session: Session) -> None:
    session[Note].register(AddStep, lambda values, event: [*values, Note(event.step)])

    session.broadcast(AddStep("one"))
    session.broadcast(AddStep("two"))

    assert session[Note].all() == (Note("one"), Note("two"))


def test_what_cannot_reduce_is_refused(session: Session) -> None:
    with pytest.raises(TypeError, match="called"):
        session[Note].register(AddStep, "no function")  # type: ignore[arg-type]  # the test is about it
    with pytest.raises(TypeError, match="class"):
        session[Note].register("AddStep", lambda values, _: values)  # type: ignore[arg-type]  # the test is about it


def test_whoever_broadcasts_reads_what_it_broadcast_while_others_do_the_same(session: Session) -> None:
    def broadcast_and_read(number: int) -> bool:
        note = Note(str(number))
        session.broadcast(note)
        return note in session[Note].all()

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(broadcast_and_read, range(400)))

    assert all(seen)
    assert len(session[Note].all()) == 400
