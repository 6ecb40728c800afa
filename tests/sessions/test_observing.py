"""Observers hear of changes after they happened."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.sessions.plans import AddStep, Note, Plan, names_of

from postroad.sessions import (
    Session,
)


def in_another_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_an_observer_is_told_the_old_and_the_new_values_after_the_change(session: Session) -> None:
    told: list[tuple[object, object, object]] = []
    session.install(Plan, initial=Plan)
    session.observe(Plan, lambda old, new: told.append((old, new, session[Plan].all())))

    session.broadcast(AddStep("one"))
    session[Plan].clear()

    assert told == [((), (Plan(("one",)),), (Plan(("one",)),)), ((Plan(("one",)),), (), ())]


def test_it_hears_of_its_own_slice_only_and_only_of_changes(session: Session) -> None:
    told: list[object] = []
    session.install(Plan)
    session.observe(Plan, lambda old, new: told.append(new))

    session.broadcast(AddStep("ignored"))
    session.broadcast(Note("another slice"))

    assert told == []


@pytest.mark.parametrize(("slice_type", "fn", "named"), [(int, print, "slice_type"), (Plan, "print", "fn")])
def test_what_cannot_be_observed_or_told_is_refused(session: Session, slice_type: Any, fn: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"^{named}"):
        session.observe(slice_type, fn)


def test_unsubscribing_ends_it(session: Session) -> None:
    told: list[object] = []
    subscription = session.observe(Note, lambda old, new: told.append(new))

    subscription.unsubscribe()
    subscription.unsubscribe()
    session.broadcast(Note("unheard"))

    assert told == []


def test_its_error_is_logged_and_nothing_else(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []
    session.observe(Note, lambda old, new: 1 / 0)
    session.observe(Note, lambda old, new: told.append(new))

    result = session.broadcast(Note("a"))

    assert result.ok
    assert told == [(Note("a"),)]
    assert names_of(caplog.records) == ["session_observer_failed"]


def test_it_runs_outside_the_lock_so_that_it_may_broadcast_and_wait_for_others(session: Session) -> None:
    session.install(Plan, initial=Plan)
    session.observe(Note, lambda old, new: in_another_thread(lambda: session.broadcast(AddStep("observed"))))

    session.broadcast(Note("a"))

    assert session[Plan].latest() == Plan(("observed",))
