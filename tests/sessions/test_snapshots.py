"""Snapshots: a session's state as a value, and back, across processes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.sessions.plans import AddStep, Identified, Note, Plan, Texts

from postroad import EventRegistry
from postroad.bus import InProcessEventBus
from postroad.errors import InvalidMessage, InvalidSnapshot, UnknownEventType
from postroad.sessions import PromptRendered, Session, Snapshot

ROOT = Path(__file__).parents[2]
RENDERED = PromptRendered("ns", "key", "review", "openai")


@pytest.fixture
def filled(session: Session) -> Session:
    session.install(Plan, initial=Plan)
    session.install(Texts, initial=Texts)
    session.broadcast(AddStep("research"))
    session.broadcast(Identified("once"))
    session[Note].seed([Note("a"), Note("b")])
    session.broadcast(RENDERED)
    return session


def test_restoring_brings_back_exactly_the_slices_of_the_snapshot(filled: Session) -> None:
    snapshot = filled.snapshot()
    filled.broadcast(AddStep("write"))
    filled[Note].clear()
    filled[AddStep].seed(AddStep("not in the snapshot"))

    filled.restore(snapshot)

    assert filled[Plan].all() == (Plan(("research",)),)
    assert filled[Note].all() == (Note("a"), Note("b"))
    assert filled[AddStep].all() == ()


def test_a_snapshot_goes_through_json(filled: Session) -> None:
    text = filled.snapshot().to_json()
    other = Session(bus=InProcessEventBus())

    other.restore(Snapshot.from_json(text))

    assert other[Plan].all() == (Plan(("research",)),)
    assert other[Note].all() == (Note("a"), Note("b"))
    assert other[Texts].latest() == Texts(("once",))
    assert Snapshot.from_json(text).to_json() == text


def test_the_text_itself_can_be_restored(filled: Session) -> None:
    other = Session()

    other.restore(filled.snapshot().to_json())

    assert other[Plan].latest() == Plan(("research",))


def test_another_process_restores_it(filled: Session, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.write_text(filled.snapshot().to_json())
    code = (
        "import sys, pathlib\n"
        "from tests.sessions.plans import AddStep, Identified, Note, Plan, Texts\n"
        "from postroad.sessions import Session\n"
        "session = Session()\n"
        "session.install(Plan); session.install(Texts)\n"
        f"session.restore(pathlib.Path({str(file)!r}).read_text())\n"
        "session.broadcast(AddStep('write')); session.broadcast(Identified('once'))\n"
        "print(session[Plan].latest().steps, session[Texts].latest().texts, len(session[Note].all()))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert done.stdout.strip() == "('research', 'write') ('once',) 2", done.stderr


def test_telemetry_is_left_out_unless_asked_for(filled: Session) -> None:
    without, everything = filled.snapshot(), filled.snapshot(include_all=True)

    filled.restore(everything)
    with_telemetry = filled[PromptRendered].all()
    filled.restore(without)

    assert with_telemetry == (RENDERED,)
    assert filled[PromptRendered].all() == ()


def test_the_ids_of_applied_events_are_kept_in_it(filled: Session) -> None:
    restored = Session()
    restored.install(Texts)

    restored.restore(filled.snapshot().to_json())
    restored.reduce(Identified("once"))

    assert restored[Texts].latest() == Texts(("once",))


def test_what_came_after_the_snapshot_is_applied_again_after_a_restore(session: Session) -> None:
    session.install(Texts, initial=Texts)
    before = session.snapshot()
    session.reduce(Identified("once"))

    session.restore(before)
    session.reduce(Identified("once"))

    assert session[Texts].latest() == Texts(("once",))


def test_telemetry_that_was_left_out_can_be_replayed(filled: Session) -> None:
    filled.restore(filled.snapshot().to_json())

    filled.reduce(RENDERED)

    assert filled[PromptRendered].all() == (RENDERED,)


def test_observers_are_told_what_a_restore_changed(filled: Session) -> None:
    told: list[tuple[object, object]] = []
    snapshot = filled.snapshot()
    filled[Note].clear()
    filled.observe(Note, lambda old, new: told.append((old, new)))

    filled.restore(snapshot)

    assert told == [((), (Note("a"), Note("b")))]


def test_a_type_that_is_not_registered_is_an_error_before_anything_changes(filled: Session) -> None:
    text = filled.snapshot().to_json()
    stranger = Session(bus=InProcessEventBus(registry=EventRegistry()))
    stranger[AddStep].seed(AddStep("kept"))

    with pytest.raises(UnknownEventType):
        stranger.restore(text)

    assert stranger[AddStep].all() == (AddStep("kept"),)
    assert stranger[Note].all() == ()


@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", "5", "{}", '{"kind": "other"}', "[" * 100_000, '{"kind": "postroad.snapshot"}', "\ud800"],
    ids=lambda text: ascii(text[:30]),
)
def test_text_that_is_no_snapshot_is_refused_and_changes_nothing(filled: Session, text: str) -> None:
    with pytest.raises(InvalidSnapshot):
        filled.restore(text)
    with pytest.raises(InvalidSnapshot):
        Snapshot.from_json(text)

    assert filled[Plan].latest() == Plan(("research",))
    assert filled[PromptRendered].all() == (RENDERED,)


@pytest.mark.parametrize("what", [None, 5, {}])
def test_what_is_neither_a_snapshot_nor_text_is_refused(filled: Session, what: Any) -> None:
    with pytest.raises(InvalidSnapshot):
        filled.restore(what)

    assert filled[Plan].latest() == Plan(("research",))


def test_a_snapshot_of_another_version_is_refused(filled: Session) -> None:
    text = filled.snapshot().to_json().replace('"version":1', '"version":99', 1)

    with pytest.raises(InvalidSnapshot, match="version: 99"):
        filled.restore(text)


def test_a_value_that_no_longer_fits_its_class_is_refused_and_changes_nothing(filled: Session) -> None:
    text = filled.snapshot().to_json().replace('"text":"b"', '"text":5')

    with pytest.raises(InvalidMessage, match="text"):
        filled.restore(text)

    assert filled[Note].all() == (Note("a"), Note("b"))


def test_a_value_that_json_cannot_hold_is_named_and_still_restored_here(session: Session) -> None:
    odd = make_dataclass("Odd", [("number", float)], frozen=True, namespace={"__module__": __name__})
    session[odd].seed(odd(float("nan")))
    snapshot = session.snapshot()
    session.reset()

    session.restore(snapshot)

    assert len(session[odd].all()) == 1
    with pytest.raises(InvalidMessage, match="number"):
        snapshot.to_json()


@dataclass(frozen=True)
class HasAnIdOfItsOwn:
    event_id: int


def test_a_slice_may_have_an_event_id_that_is_none(session: Session) -> None:
    session[HasAnIdOfItsOwn].seed(HasAnIdOfItsOwn(5))

    session.restore(session.snapshot().to_json())

    assert session[HasAnIdOfItsOwn].all() == (HasAnIdOfItsOwn(5),)


def test_a_reset_empties_everything_so_that_events_can_be_replayed(filled: Session) -> None:
    filled.reset()
    empty = (filled[Plan].all(), filled[Note].all(), filled[PromptRendered].all())

    filled.reduce(Identified("once"))

    assert empty == ((), (), ())
    assert filled[Texts].latest() == Texts(("once",))


def test_it_says_whose_it_is(filled: Session) -> None:
    snapshot = filled.snapshot()

    assert snapshot.session_id == filled.session_id
    assert isinstance(snapshot.session_id, UUID)
    assert Snapshot.from_json(snapshot.to_json()).session_id == filled.session_id
