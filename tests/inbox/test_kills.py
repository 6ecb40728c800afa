"""Consumers killed at the worst moments: effects in the database happen once, those outside are known to be unknown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.inbox.fixtures import InboxFixture
from tests.inbox.mail import event, held, send
from tests.waiting import eventually

import postroad
from postroad import Backend, Queue, QueueSpec
from postroad.queues.markers import read_dead

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bus.db'}"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as backend:
        yield backend


@pytest.fixture
def queue(backend: Backend) -> Queue:
    backend.create_queue(QueueSpec("dead.fifo", fifo=True))
    return backend.create_queue(
        QueueSpec("ledger.fifo", fifo=True, visibility=1, dead_letter="dead.fifo", max_receives=20)
    )


class Workers:
    """Consumers in processes of their own."""

    def __init__(self, url: str, queue: Queue, fixture: InboxFixture, calls: Path) -> None:
        self._arguments = [url, queue.name, fixture.dsn]
        self.calls = calls
        self._running: list[subprocess.Popen[bytes]] = []

    def start(
        self, *, effects: str = "database", on_unknown: str = "dead_letter", failpoints: str = ""
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.inbox.worker", *self._arguments, effects, on_unknown, str(self.calls)]
        environment = {**os.environ, "POSTROAD_FAILPOINTS": failpoints}
        worker = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        self._running.append(worker)
        return worker

    def end(self) -> None:
        for worker in self._running:
            worker.kill()
            worker.communicate()


@pytest.fixture
def workers(url: str, queue: Queue, fixture: InboxFixture, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(url, queue, fixture, tmp_path / "calls")
    yield workers
    workers.end()


@pytest.mark.parametrize("place", ["inbox.after_insert", "consumer.after_effect"])
def test_killed_before_the_commit_the_effect_is_rolled_back_and_made_once(
    fixture: InboxFixture, queue: Queue, workers: Workers, place: str
) -> None:
    send(queue, event("tr_1", n=1), event("tr_1", n=2))

    assert workers.start(failpoints=f"{place}=kill9").wait(120) == -signal.SIGKILL
    assert fixture.times("tr_1") == 0
    workers.start()
    eventually(lambda: held(queue) == 0)

    assert fixture.times("tr_1") == 2


def test_killed_between_commit_and_ack_the_redelivery_is_a_duplicate(
    fixture: InboxFixture, queue: Queue, workers: Workers
) -> None:
    send(queue, event("tr_1"))

    assert workers.start(failpoints="consumer.after_commit=kill9").wait(120) == -signal.SIGKILL
    assert fixture.times("tr_1") == 1
    workers.start()
    eventually(lambda: held(queue) == 0)

    assert fixture.times("tr_1") == 1


def test_killed_again_and_again_every_effect_is_made_once(
    fixture: InboxFixture, queue: Queue, workers: Workers
) -> None:
    sent = [event(f"tr_{n % 4}", n=n) for n in range(20)]
    send(queue, *sent)

    places = ("inbox.after_insert", "consumer.after_effect", "consumer.after_commit", "queue.ack.before_commit")
    while held(queue):
        worker = workers.start(failpoints=";".join(f"{place}=kill9@0.05" for place in places))
        eventually(lambda worker=worker: worker.poll() is not None or held(queue) == 0)  # type: ignore[misc]  # the default binds it

    assert [fixture.times(f"tr_{n}") for n in range(4)] == [5, 5, 5, 5]


def test_killed_during_an_effect_outside_its_outcome_is_unknown(
    fixture: InboxFixture, queue: Queue, workers: Workers, backend: Backend
) -> None:
    sent = event("tr_1")
    send(queue, sent, event("tr_2"))

    killed = workers.start(effects="external", failpoints="consumer.after_effect=kill9")
    assert killed.wait(120) == -signal.SIGKILL
    workers.start(effects="external")
    eventually(lambda: held(queue) == 0)

    (letter,) = backend.queue("dead.fifo").peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert marker.reason == "unknown-outcome"
    assert [effect.event_id for effect in fixture.inbox.unknown()] == [sent.event_id]
    assert len(workers.calls.read_text().splitlines()) == 2


def test_killed_during_an_effect_outside_a_retry_has_the_same_key_and_a_higher_token(
    fixture: InboxFixture, queue: Queue, workers: Workers
) -> None:
    send(queue, event("tr_1"))

    workers.start(effects="external", failpoints="consumer.after_effect=kill9").wait(120)
    workers.start(effects="external", on_unknown="retry")
    eventually(lambda: held(queue) == 0)

    first, second = (line.split() for line in workers.calls.read_text().splitlines())
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("new", "unknown")
    assert int(first[2]) < int(second[2])
    assert fixture.inbox.unknown() == []


def test_sigterm_ends_a_consumer_cleanly(fixture: InboxFixture, queue: Queue, workers: Workers) -> None:
    send(queue, *(event(f"tr_{n}") for n in range(20)))
    worker = workers.start()
    eventually(lambda: fixture.times("tr_0") == 1)

    worker.terminate()
    said, _ = worker.communicate(timeout=120)

    assert worker.returncode == 0
    assert b"stopped" in said
    assert queue.stats().in_flight == 0
