"""Redrive, groups, peek and purge on emulated SQS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import postroad
from postroad import failpoints
from postroad.cli.output import exit_code
from postroad.errors import NotSupported, PurgeRunning, Unavailable
from postroad.operations import AuditLog, Match, doctor, failure_groups, purge, redrive
from postroad.queues import OutgoingMessage, Queue, QueueSpec
from postroad.wiring import Backend

pytestmark = pytest.mark.aws


@pytest.fixture(autouse=True)
def _audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_AUDIT_LOG", str(tmp_path / "audit.jsonl"))


@pytest.fixture
def backend(ministack_url: str) -> Iterator[Backend]:
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as opened:
        yield opened


@pytest.fixture
def on_moto(moto_url: str) -> Iterator[Backend]:
    with postroad.connect(f"aws://us-east-1?endpoint_url={moto_url}") as opened:
        yield opened


def made(backend: Backend, unique: Callable[[str], str], end: str = "") -> tuple[Queue, Queue]:
    """A queue and its dead letters."""
    fifo = end == ".fifo"
    dead = backend.create_queue(QueueSpec(f"{unique('dead')}{end}", fifo=fifo, visibility=60))
    jobs = backend.create_queue(
        QueueSpec(f"{unique('jobs')}{end}", fifo=fifo, dead_letter=dead.name, visibility=60, max_receives=3)
    )
    return jobs, dead


def bury(queue: Queue, *bodies: str, error: str | None = None, group: str | None = None) -> None:
    queue.send([OutgoingMessage(body, group=group, dedup_id=group and body) for body in bodies])
    for _ in bodies:
        held = queue.receive(max_messages=1, wait=2)
        assert all(result.ok for result in queue.reject(held, reason="test", error=error))


def drained(queue: Queue) -> list[str]:
    found: list[str] = []
    while batch := queue.receive(wait=1):
        found += [delivery.body.decode() for delivery in batch]
        queue.ack(batch)
    return found


def test_an_endpoint_without_move_tasks_is_redriven_by_us(backend: Backend, unique: Callable[[str], str]) -> None:
    jobs, dead = made(backend, unique)
    bury(jobs, "a", "b", error="ValueError: 1")
    bury(jobs, "c", error="KeyError: 1")

    with pytest.raises(NotSupported):
        failure_groups(backend, jobs.name)
    groups = failure_groups(backend, dead.name)
    chosen = redrive(backend, dead.name, match=Match(fingerprint=groups.groups[0].fingerprint))
    rest = redrive(backend, dead.name)

    assert (groups.scanned, groups.complete, [group.count for group in groups.groups]) == (3, True, [2, 1])
    assert (chosen.status, chosen.moved, rest.status, rest.moved) == ("done", 2, "done", 1)
    assert sorted(drained(jobs)) == ["a", "b", "c"]


def test_so_is_one_that_answers_500(on_moto: Backend, unique: Callable[[str], str]) -> None:
    jobs, dead = made(on_moto, unique)
    bury(jobs, "a", "b")

    report = redrive(on_moto, dead.name)

    assert (report.status, report.moved, report.destinations) == ("done", 2, {jobs.name: 2})


def test_a_redrive_of_fifo_that_died_between_send_and_delete_sends_nothing_twice(
    backend: Backend, unique: Callable[[str], str]
) -> None:
    jobs, dead = made(backend, unique, ".fifo")
    bury(jobs, "1", "2", "3", group="g")
    failpoints.load("queue.redrive.mid=raise#1")
    try:
        with pytest.raises(Unavailable):
            redrive(backend, dead.name)
    finally:
        failpoints.load(None)

    report = redrive(backend, dead.name)

    assert (report.status, report.moved) == ("done", 3)
    assert drained(jobs) == ["1", "2", "3"]
    assert AuditLog().verify().ok


def test_a_purge_into_an_archive_deletes_what_it_wrote(
    backend: Backend, unique: Callable[[str], str], tmp_path: Path
) -> None:
    jobs, _ = made(backend, unique)
    jobs.send([OutgoingMessage(body) for body in "abc"])
    [held] = jobs.receive(max_messages=1)

    purged = purge(backend, jobs.name, confirm=jobs.name, reason="test", archive=tmp_path / "a.jsonl")

    kept = [json.loads(line)["body"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert (purged, sorted([*kept, held.body.decode()])) == (2, ["a", "b", "c"])
    assert jobs.ack([held])[0].ok


def test_a_second_purge_within_a_minute_is_refused(on_moto: Backend, unique: Callable[[str], str]) -> None:
    jobs, _ = made(on_moto, unique)
    purge(on_moto, jobs.name, confirm=jobs.name, reason="test")

    with pytest.raises(PurgeRunning) as refused:
        purge(on_moto, jobs.name, confirm=jobs.name, reason="test")

    assert exit_code(refused.value) == 1
    assert "PurgeRunning" in list(AuditLog().read())[-1].detail["error"]


def calls_of(backend: Backend) -> list[str]:
    """The operations that the backend asks SQS for from now on."""
    seen: list[str] = []
    installation: Any = backend._installation
    installation._connection.sqs.meta.events.register("before-call.sqs", lambda model, **_: seen.append(model.name))
    return seen


@pytest.fixture
def crowded(on_moto: Backend, unique: Callable[[str], str]) -> tuple[Backend, str]:
    """Twenty-four queues that share their beginning."""
    prefix = unique("crowd")
    for number in range(24):
        on_moto.create_queue(QueueSpec(f"{prefix}-{number}"))
    return on_moto, prefix


def test_a_list_of_queues_takes_one_call_for_each_of_them(crowded: tuple[Backend, str]) -> None:
    backend, prefix = crowded
    calls = calls_of(backend)

    names = [name for name in backend.queues() if name.startswith(prefix)]
    found = backend.overviews(names)

    assert [overview.spec.name for overview in found] == sorted(names)
    assert len(found) == 24
    assert len(calls) <= 1.1 * 24


def test_a_doctor_takes_one_call_for_each_queue(crowded: tuple[Backend, str]) -> None:
    backend, prefix = crowded
    asked: list[str] = []
    installation: Any = backend._installation
    installation._connection.sqs.meta.events.register(
        "provide-client-params.sqs", lambda params, **_: asked.append(params.get("QueueUrl", ""))
    )

    doctor(backend)

    assert len([url for url in asked if f"/{prefix}-" in url]) == 24


def test_the_calls_of_a_redrive_do_not_depend_on_how_many_queues_there_are(
    on_moto: Backend, unique: Callable[[str], str]
) -> None:
    def calls_of_a_redrive() -> list[str]:
        jobs, dead = made(on_moto, unique)
        bury(jobs, "a", "b", error="ValueError: no")
        calls = calls_of(on_moto)
        assert redrive(on_moto, dead.name, native=False, stop_after=0).moved == 2
        return calls

    before = calls_of_a_redrive()
    for number in range(12):
        on_moto.create_queue(QueueSpec(unique(f"other-{number}")))
    after = calls_of_a_redrive()

    assert len(after) <= len(before)
    assert "ListQueues" not in after


def test_groups_of_sqs_look_at_every_message_and_give_all_of_them_back(
    backend: Backend, unique: Callable[[str], str]
) -> None:
    jobs, dead = made(backend, unique)
    bury(jobs, *map(str, range(25)), error="ValueError: no [a.py:f]")
    bury(jobs, *map(str, range(10)), error="KeyError: 'x' [b.py:g]")

    found = failure_groups(backend, dead.name)
    part = failure_groups(backend, dead.name, limit=10)

    assert ([group.count for group in found.groups], found.scanned, found.complete) == ([25, 10], 35, True)
    assert (part.scanned, part.complete) == (10, False)
    assert len(drained(dead)) == 35


def test_groups_of_a_queue_that_has_dead_letters_itself_are_refused(
    backend: Backend, unique: Callable[[str], str]
) -> None:
    jobs, _ = made(backend, unique)

    with pytest.raises(NotSupported, match="counts as receiving"):
        failure_groups(backend, jobs.name)
