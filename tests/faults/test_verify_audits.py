"""What `postroad verify` looks up after the drain: blobs, and messages that a stopped receiver held."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postroad
from postroad.journal import JournalEvent
from postroad.outbox.dispatching import decisions, pump
from postroad.queues import OutgoingMessage
from postroad.testing.verify import audits
from postroad.testing.verify.audits import audit_file, audit_references, audit_sigterm
from postroad.testing.verify.scenario import History, Place
from postroad.testing.verify.scenarios import outbox, tasks
from postroad.testing.verify.workload import prepare_ledger
from postroad.wiring import Backend

LARGE = "x" * 5_000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "report" / "history").mkdir(parents=True)
    work = tmp_path / "work"
    work.mkdir()
    url, dsn = f"sqlite:///{work / 'store.db'}", f"sqlite:///{work / 'effects.db'}"
    report = str(tmp_path / "report")
    return Place(store="sqlite", directory=str(work), report=report, url=url, dsn=dsn, visibility=2.0, faults=True)


@pytest.fixture
def history(place: Place) -> Iterator[History]:
    with closing(History(place.history, "supervisor")) as opened:
        yield opened


def _checks(place: Place, invariant: str) -> list[dict[str, Any]]:
    lines = (place.history / "supervisor.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["invariant"] == invariant]


def _broken(place: Place, invariant: str) -> list[str]:
    return [line["detail"] for line in _checks(place, invariant) if not line["ok"]]


def _leave_large_bodies(place: Place) -> list[Path]:
    """Send two large bodies, ack one of them, and return the files of both."""
    with place.backend() as backend:
        queue = backend.create_queue(postroad.QueueSpec("orders", max_message_bytes=2_048))
        queue.send([OutgoingMessage(LARGE), OutgoingMessage(LARGE)])
        queue.ack(queue.receive(max_messages=1))
    blobs = [path for path in Path(f"{place.url.removeprefix('sqlite:///')}.blobs").rglob("*") if path.is_file()]
    assert len(blobs) == 2
    return blobs


def test_blobs_that_outlive_their_messages_for_the_retention_are_no_violation(place: Place, history: History) -> None:
    blobs = _leave_large_bodies(place)

    audit_file(place, history)

    assert len(_checks(place, "I27")) == 3
    assert _broken(place, "I27") == []
    assert all(blob.exists() for blob in blobs)


def test_a_queue_that_goes_away_during_the_audit_is_passed_over(
    place: Place, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leave_large_bodies(place)
    names = Backend.queues
    monkeypatch.setattr(Backend, "queues", lambda backend: ["own-of-a-killed-process", *names(backend)])

    audit_references(place, history)

    assert [check["detail"] for check in _checks(place, "I27")] == ["0 of 1 messages refer to a missing blob"]


def test_a_message_whose_blob_is_gone_is_found(place: Place, history: History) -> None:
    for blob in _leave_large_bodies(place):
        blob.unlink()

    audit_file(place, history)

    assert _broken(place, "I27") == ["1 of 1 messages refer to a missing blob"]


def test_a_blob_that_no_sweep_would_remove_is_found(place: Place, history: History) -> None:
    in_a_year = time.time() + 365 * 86_400
    os.utime(_leave_large_bodies(place)[0], (in_a_year, in_a_year))

    audit_file(place, history)

    assert _broken(place, "I27") == ["1 blobs would stay when all messages have expired"]


@pytest.mark.slow
def test_what_a_receiver_holds_at_sigterm_can_be_received_at_once(place: Place, history: History) -> None:
    audit_sigterm(place, history)

    assert len(_checks(place, "I30")) == 1
    assert _broken(place, "I30") == []


def test_a_receiver_that_keeps_its_messages_is_found(
    place: Place, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(place: Place) -> None:
        with place.backend() as backend:
            backend.queue("verify-sigterm").receive(max_messages=4)

    monkeypatch.setattr(audits, "_hold_and_end", keep)

    audit_sigterm(place, history)

    assert [detail[:7] for detail in _broken(place, "I30")] == ["6 of 10"]


@pytest.mark.parametrize(
    ("faults", "attempts", "is_explained"),
    [(False, 1, False), (False, 2, True), (False, 3, False), (True, 0, False), (True, 1, True), (True, 3, False)],
)
def test_attempts_that_calls_do_not_explain_are_found(
    place: Place, history: History, faults: bool, attempts: int, is_explained: bool
) -> None:
    calls = Path(place.directory) / "calls"
    calls.mkdir()
    (calls / "dispatcher-0.1").write_text("a\na\nb\n")

    outbox.audit_attempts(msgspec.structs.replace(place, faults=faults), history, {"a": attempts, "b": 1})

    assert [line["ok"] for line in _checks(place, "I18")] == [is_explained]


def _prepare_outbox(place: Place) -> None:
    prepare_ledger(place)
    with place.backend() as backend:
        outbox.SCENARIO.prepare(place, backend)


def test_a_row_that_a_target_refuses_fails_at_the_limit(place: Place, history: History) -> None:
    _prepare_outbox(place)

    outbox.audit_limit(place, history)

    assert _broken(place, "I18") == []


def test_a_row_that_is_tried_beyond_the_limit_is_found(
    place: Place, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare_outbox(place)
    decide: Any = decisions.settlement
    lenient = {"retry_max": outbox.LIMIT + 1}
    patched = lambda row, verdict, config, chance: decide(row, verdict, replace(config, **lenient), chance)  # noqa: E731
    monkeypatch.setattr(pump, "settlement", patched)

    outbox.audit_limit(place, history)

    (detail,) = _broken(place, "I18")
    assert f"after {outbox.LIMIT + 1} calls" in detail


@pytest.mark.parametrize("tenant", ["default", "other"])
def test_a_secret_in_the_answers_of_another_tenant_is_found(place: Place, history: History, tenant: str) -> None:
    with place.backend() as backend:
        backend.journal().init()
        properties = {"requestId": "a", "name": "chore", "input": {"canary": tasks.canary_of("other")}}
        event = JournalEvent.create("Task Pending", tenant_id=tenant, entity_id="a", properties=properties)
        assert backend.journal().append([event])[0].ok
        tasks.read_journal(place, backend, history)

    found = [] if tenant == "other" else ["1 answers or files have a foreign secret ['Task Pending of default']"]
    assert _broken(place, "I29") == found


def test_a_secret_in_a_log_is_found(place: Place, history: History) -> None:
    logs = Path(place.directory) / "stderr"
    logs.mkdir()
    (logs / "worker-0.1").write_text(f'{{"event":"task_failed","input":"{tasks.canary_of("other")}"}}')
    with place.backend() as backend:
        backend.journal().init()
        tasks.read_journal(place, backend, history)

    assert _broken(place, "I29") == ["1 answers or files have a foreign secret ['worker-0.1']"]
