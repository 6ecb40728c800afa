"""Whoever watches a task hears of its end, once it is committed, in every process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.journal import COMPLETED, STARTED, JournalEvent, StoredJournal


def event(event_type: str, request_id: str) -> JournalEvent:
    properties: dict[str, object] = {"requestId": request_id}
    properties |= {"output": 1, "durationMs": 1, "exitCode": 0} if event_type == COMPLETED else {}
    properties |= {"effectiveUntil": 1, "workerId": "w", "processId": 1} if event_type == STARTED else {}
    return JournalEvent.create(
        event_type, tenant_id="acme", app="shop", entity_id=request_id, context={}, properties=properties
    )


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{tmp_path / 'journal.db'}") as opened:
        yield opened


def test_the_end_of_the_watched_task_is_heard_and_nothing_else(backend: Backend) -> None:
    journal, heard = backend.journal(), list[bool]()
    assert isinstance(journal, StoredJournal)
    watch = journal.watch("acme", ("TASK", "r1"), heard.append)
    assert watch is not None

    with watch:
        journal.append([event(STARTED, "r1"), event(COMPLETED, "r2")])
        before = list(heard)
        ended = event(COMPLETED, "r1")
        journal.append([ended])
        journal.append([ended])
    journal.append([event(COMPLETED, "r1")])

    assert before.count(True) == 0
    assert heard.count(True) == 1


def test_an_end_that_is_rolled_back_is_not_heard_before_it_happens(backend: Backend) -> None:
    journal, heard = backend.journal(), list[bool]()
    assert isinstance(journal, StoredJournal)
    watch = journal.watch("acme", ("TASK", "r1"), heard.append)
    assert watch is not None

    with watch, pytest.raises(KeyError), backend.transaction():
        journal.append([event(COMPLETED, "r1")])
        raise KeyError

    assert heard.count(True) == 0


ELSEWHERE = """
import sys
import postroad
from tests.journal.test_watch import COMPLETED, event

with postroad.connect(sys.argv[1]) as backend:
    backend.journal().append([event(COMPLETED, "r1")])
"""


def test_the_end_of_a_task_in_another_process_is_heard(backend: Backend) -> None:
    journal, heard = backend.journal(), list[bool]()
    assert isinstance(journal, StoredJournal)
    watch = journal.watch("acme", ("TASK", "r1"), heard.append)
    assert watch is not None

    with watch:
        subprocess.run([sys.executable, "-c", ELSEWHERE, backend.url], check=True)
        eventually(lambda: True in heard)
