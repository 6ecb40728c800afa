"""Several processes: kills in the middle of handlers, forks, and what is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bus.vocabulary import QUICK, Placed, Stepped, eventually

import postroad
from postroad import Backend
from postroad.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
# Prints every event it handles, with the count of its receives, and dies when told to by its number.
RECEIVER = """
import os, signal, sys, time
import postroad
from dataclasses import replace
from postroad.bus import current_context
from tests.bus.vocabulary import QUICK, Placed, Stepped

url, topic, group, fifo, deadly = sys.argv[1:6]
config = replace(QUICK, visibility_timeout_seconds=1, max_receives=500, wait_time_seconds=20, retry_delays_seconds=(0,))
bus = postroad.connect(url).bus(topic, group or None, fifo=fifo == "fifo", config=config)

def handle(event):
    context = current_context()
    session = getattr(event, "session_id", "")
    os.write(1, f"{session} {event.number} {context.receive_count}\\n".encode())
    if str(event.number) == deadly and context.receive_count == 1:
        os.kill(os.getpid(), signal.SIGKILL)

bus.subscribe(Placed, handle)
bus.subscribe(Stepped, handle)
bus.start_receiver()
os.write(1, b"ready\\n")
time.sleep(600)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bus.db'}"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as backend:
        yield backend


class Receivers:
    """Child processes that receive, and all they have written."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._path = directory / "handled"
        self._path.touch()
        self._arguments = arguments
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, deadly: str = "") -> subprocess.Popen[bytes]:
        # All append to one file, so that the order among processes is seen, too.
        before = self._count_ready()
        with self._path.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", RECEIVER, *self._arguments, deadly], stdout=out, cwd=ROOT, env={**os.environ}
            )
        self.running.append(process)
        eventually(lambda: self._count_ready() > before or process.poll() is not None, within=30)
        return process

    def _count_ready(self) -> int:
        return self._path.read_text().splitlines().count("ready")

    def handled(self) -> list[tuple[str, int, int]]:
        lines = [line for line in self._path.read_text().splitlines() if line != "ready"]
        return [(session, int(number), int(count)) for session, number, count in (line.split(" ") for line in lines)]

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def receivers(tmp_path: Path, url: str) -> Iterator[list[Receivers]]:
    made: list[Receivers] = []
    yield made
    for each in made:
        each.end()


def test_a_kill_in_a_handler_gives_the_event_to_another_process(
    backend: Backend, url: str, tmp_path: Path, receivers: list[Receivers]
) -> None:
    group = Receivers(tmp_path, url, "orders", "workers", "")
    receivers.append(group)
    doomed = group.start(deadly="7")
    backend.bus("orders", config=QUICK).publish(Placed(7))
    doomed.wait(20)

    group.start()

    eventually(lambda: len(group.handled()) == 2, within=20)
    assert doomed.returncode == -signal.SIGKILL
    assert group.handled() == [("", 7, 1), ("", 7, 2)]


def test_a_broadcast_reaches_every_process(
    backend: Backend, url: str, tmp_path: Path, receivers: list[Receivers]
) -> None:
    everybody = Receivers(tmp_path, url, "orders", "", "")
    receivers.append(everybody)
    for _ in range(2):
        everybody.start()
    publisher = backend.bus("orders", config=QUICK)

    for number in range(20):
        assert publisher.publish(Placed(number)).ok

    eventually(lambda: len(everybody.handled()) == 40)
    assert sorted(number for _, number, _ in everybody.handled()) == sorted([*range(20), *range(20)])


def test_a_killed_process_leaves_a_queue_that_is_swept(url: str, tmp_path: Path, receivers: list[Receivers]) -> None:
    own = Receivers(tmp_path, url, "orders", "", "")
    receivers.append(own)
    own.start()
    own.end()

    with postroad.connect(url) as backend:
        left = [name for name in backend.queues() if "--p-" in name]
        spec = backend.queue_spec(left[0])

    assert len(left) == 1
    assert spec.auto_delete_after == 60.0


def test_a_forked_child_cannot_use_the_bus_and_the_parents_is_unharmed(backend: Backend) -> None:
    seen: list[object] = []
    bus = backend.bus("orders", config=QUICK)
    bus.subscribe(Placed, seen.append)
    bus.start_receiver()
    uses = [lambda: bus.publish(Placed()), bus.start_receiver, bus.stop_receiver, bus.receive_once]

    child = os.fork()
    if child == 0:
        refused = 0
        for use in uses:
            try:
                use()
            except ConfigurationError:
                refused += 1
        bus.close()
        os._exit(refused)
    _, status = os.waitpid(child, 0)

    backend.bus("orders", config=QUICK).publish(Placed(2))
    eventually(lambda: seen == [Placed(2)])
    assert os.waitstatus_to_exitcode(status) == len(uses)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fifo", [True, False])
def test_ten_thousand_events_survive_random_kills(
    backend: Backend, url: str, tmp_path: Path, receivers: list[Receivers], fifo: bool
) -> None:
    events, sessions = 10_000, 20
    group = Receivers(tmp_path, url, "steps", "workers", "fifo" if fifo else "")
    receivers.append(group)
    publisher = backend.bus("steps", fifo=fifo, config=QUICK)
    group.start()
    group.start()
    chance = random.Random(7)

    for start in range(0, events, 500):
        batch = [Stepped(f"s{number % sessions}", number) for number in range(start, start + 500)]
        results = [publisher.publish(event, key=event.session_id) for event in batch]
        assert all(result.ok for result in results)
        victim = group.running[-1 - chance.randrange(2)]
        time.sleep(chance.random() * 0.2)
        victim.kill()
        victim.wait()
        group.running.remove(victim)
        group.start()

    eventually(lambda: len({number for _, number, _ in group.handled()}) == events, within=120)
    if fifo:
        _assert_order(group.handled(), sessions)
    dead = backend.queue("steps--workers--dead.fifo" if fifo else "steps--workers--dead")
    assert dead.stats().visible == 0


def _assert_order(handled: list[tuple[str, int, int]], sessions: int) -> None:
    """Every session goes forward: an event is handled for the first time only after all before it were."""
    for session in range(sessions):
        numbers = [number for name, number, _ in handled if name == f"s{session}"]
        first_times = list(dict.fromkeys(numbers))
        assert first_times == sorted(first_times)
