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
    thread.join(120)
    assert not thread.is_alive()


def test_an_observer_is_told_the_old_and_the_new_values_after_the_change(session: Session) -> None:
    calls: list[tuple[object, object, object]] = []
    session.install(Plan, initial=Plan)
    session.observe(Plan, lambda old, new: calls.append((old, new, session[Plan].all())))

    session.broadcast(AddStep("one"))
    session[Plan].clear()

    assert calls == [((), (Plan(("one",)),), (Plan(("one",)),)), ((Plan(("one",)),), (), ())]


def test_it_hears_of_its_own_slice_only_and_only_of_changes(session: Session) -> None:
    calls: list[object] = []
    session.install(Plan)
    session.observe(Plan, lambda old, new: calls.append(new))

    session.broadcast(AddStep("ignored"))
    session.broadcast(Note("another slice"))

    assert calls == []


@pytest.mark.parametrize(("slice_type", "fn", "named"), [(int, print, "slice_type"), (Plan, "print", "fn")])
def test_what_cannot_be_observed_or_told_is_refused(session: Session, slice_type: Any, fn: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"^{named}"):
        session.observe(slice_type, fn)


def test_unsubscribing_ends_it(session: Session) -> None:
    calls: list[object] = []
    subscription = session.observe(Note, lambda old, new: calls.append(new))

    subscription.unsubscribe()
    subscription.unsubscribe()
    session.broadcast(Note("unheard"))

    assert calls == []


def test_its_error_is_logged_and_nothing_else(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[object] = []
    session.observe(Note, lambda old, new: 1 / 0)
    session.observe(Note, lambda old, new: calls.append(new))

    result = session.broadcast(Note("a"))

    assert result.ok
    assert calls == [(Note("a"),)]
    assert names_of(caplog.records) == ["session_observer_failed"]


def test_it_runs_outside_the_lock_so_that_it_may_broadcast_and_wait_for_others(session: Session) -> None:
    session.install(Plan, initial=Plan)
    session.observe(Note, lambda old, new: in_another_thread(lambda: session.broadcast(AddStep("observed"))))

    session.broadcast(Note("a"))

    assert session[Plan].latest() == Plan(("observed",))


def test_a_change_made_while_an_observer_runs_is_told_after_the_earlier_one(session: Session) -> None:
    calls: list[tuple[Note, ...]] = []
    entered, go_on = threading.Event(), threading.Event()

    def slow(old: tuple[Note, ...], new: tuple[Note, ...]) -> None:
        if not entered.is_set():
            entered.set()
            go_on.wait()
        calls.append(new)

    session.observe(Note, slow)
    first = threading.Thread(target=session[Note].append, args=(Note("one"),))
    first.start()
    entered.wait()
    in_another_thread(lambda: session[Note].append(Note("two")))
    go_on.set()
    first.join()

    assert calls == [(Note("one"),), (Note("one"), Note("two"))]


def test_threads_that_change_a_slice_at_once_are_told_in_the_order_of_the_changes(session: Session) -> None:
    lengths: list[int] = []
    session.observe(Note, lambda old, new: lengths.append(len(new)))
    start = threading.Barrier(2)

    def change() -> None:
        start.wait()
        for _ in range(300):
            session[Note].append(Note("x"))

    threads = [threading.Thread(target=change) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert lengths == list(range(1, 601))


def test_an_observer_that_changes_the_session_is_told_of_its_own_change_next(session: Session) -> None:
    calls: list[int] = []

    def grow(old: tuple[Note, ...], new: tuple[Note, ...]) -> None:
        if len(new) < 3:
            session[Note].append(Note("more"))
        calls.append(len(new))

    session.observe(Note, grow)
    session[Note].append(Note("first"))

    assert calls == [1, 2, 3]


def test_observers_are_told_again_after_one_was_interrupted(session: Session) -> None:
    calls: list[int] = []

    def interrupted(old: tuple[Note, ...], new: tuple[Note, ...]) -> None:
        calls.append(len(new))
        if len(new) == 1:
            raise KeyboardInterrupt

    session.observe(Note, interrupted)
    with pytest.raises(KeyboardInterrupt):
        session[Note].append(Note("one"))
    session[Note].append(Note("two"))

    assert calls == [1, 2]
