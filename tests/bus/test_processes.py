"""Several processes: kills in the middle of handlers, forks, and what is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.bus.vocabulary import QUICK, Placed, Stepped
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.errors import ConfigurationError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bus.db'}"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with postroad.connect(url) as backend:
        yield backend


class Receivers:
    """Processes that receive, and all that they have handled."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        # All append to one file, so that the order among processes is seen, too.
        path = directory / "handled"
        path.touch()
        self._file = path.open()
        self._handled: list[tuple[str, int, int]] = []
        command = [sys.executable, "-W", "error", "-m", "tests.bus.receiver_processes", *arguments, str(path)]
        self._children = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def start(self, deadly: str = "") -> int:
        return self._ask(f"start {deadly}")

    def kill(self, process: int) -> int:
        return self._ask(f"kill {process}")

    def wait(self, process: int) -> int:
        return self._ask(f"wait {process}")

    def handled(self) -> list[tuple[str, int, int]]:
        for line in self._file:
            session, number, count = line.rstrip("\n").split(" ")
            self._handled.append((session, int(number), int(count)))
        return self._handled

    def has_handled(self, count: int) -> bool:
        return len(self.handled()) >= count

    def end(self) -> None:
        self._children.communicate()
        self._file.close()

    def _ask(self, line: str) -> int:
        assert self._children.stdin is not None
        assert self._children.stdout is not None
        self._children.stdin.write(f"{line}\n")
        return int(self._children.stdout.readline())


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
    ended = group.wait(doomed)

    group.start()

    eventually(lambda: len(group.handled()) == 2)
    assert ended == -signal.SIGKILL
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
    own.kill(own.start())

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


@pytest.mark.parametrize("fifo", [True, False])
def test_ten_thousand_events_survive_random_kills(
    backend: Backend, url: str, tmp_path: Path, receivers: list[Receivers], fifo: bool
) -> None:
    events, sessions, kills = 10_000, 20, 20
    group = Receivers(tmp_path, url, "steps", "workers", "fifo" if fifo else "")
    receivers.append(group)
    config = replace(QUICK, message_group_id="${session_id}" if fifo else None)
    publisher = backend.bus("steps", fifo=fifo, config=config)
    # One of them dies of the first event, so that at least one kill leaves something in hand.
    running = [group.start(deadly="0"), group.start(deadly="0")]
    chance = random.Random(7)
    steps = (Stepped(f"s{number % sessions}", number) for number in range(events))

    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(publisher.publish_many, steps)
        for moment in sorted(chance.sample(range(events - 500), kills)):
            eventually(partial(group.has_handled, moment))
            group.kill(running.pop(chance.randrange(2)))
            running.append(group.start())

    eventually(lambda: group.has_handled(events) and len(numbers_of(group)) == events)
    assert all(result.ok for result in published.result())
    assert any(count > 1 for _, _, count in group.handled())
    if fifo:
        _assert_order(group.handled(), sessions)
    dead = backend.queue("steps--workers--dead.fifo" if fifo else "steps--workers--dead")
    assert dead.stats().visible == 0


def numbers_of(group: Receivers) -> set[int]:
    return {number for _, number, _ in group.handled()}


def _assert_order(handled: list[tuple[str, int, int]], sessions: int) -> None:
    """Every session goes forward: an event is handled for the first time only after all before it were."""
    for session in range(sessions):
        numbers = [number for name, number, _ in handled if name == f"s{session}"]
        first_times = list(dict.fromkeys(numbers))
        assert first_times == sorted(first_times)
