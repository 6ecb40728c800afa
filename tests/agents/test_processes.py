"""Several runners, dead ones, and processes killed in the middle of their work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents.conftest import Post, n_of

from postroad import failpoints
from postroad.agents import AgentEvent, Agents
from postroad.agents.runner import AGGREGATOR
from postroad.errors import StorageFull
from postroad.queues import Delivery
from postroad.wiring import Backend, connect

_RUN = """
import sys
from postroad.wiring import connect
with connect(sys.argv[1]) as backend:
    runner = backend.agents().runner(worker="runner", batch=7)
    while runner.run_once().read:
        pass
"""
_HOLD = """
import sys, time
from postroad.wiring import connect
with connect(sys.argv[1]) as backend:
    taken = backend.agents().queue(sys.argv[2]).receive(visibility=1)
    print(len(taken), flush=True)
    time.sleep(60)
"""
_PRODUCERS = ("ann", "bob", "cat")
_LISTENERS = ("dan", "eve")
_EVENTS = 60


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/postroad.db"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with connect(url) as backend:
        yield backend


def _fill(agents: Agents) -> None:
    for agent_id in (*_PRODUCERS, *_LISTENERS):
        agents.register(agent_id)
    agents.subscribe_many([(listener, producer) for listener in _LISTENERS for producer in _PRODUCERS])
    agents.publish([AgentEvent(producer, "counted", {"n": n}) for n in range(_EVENTS) for producer in _PRODUCERS])


def _run(url: str, told: str = "") -> int:
    environment = {**os.environ, "POSTROAD_FAILPOINTS": told}
    return subprocess.run([sys.executable, "-c", _RUN, url], env=environment, check=False).returncode


def _received(agents: Agents, listener: str) -> dict[str, list[int]]:
    by_producer: dict[str, list[int]] = {}
    queue = agents.queue(listener)
    while taken := queue.receive(max_messages=100):
        for delivery in taken:
            by_producer.setdefault(str(delivery.group), []).append(n_of(delivery))
        queue.ack(taken)
    return by_producer


def test_a_closed_runner_hands_its_shards_over_at_once(backend: Backend, url: str) -> None:
    agents = backend.agents()
    first, second = agents.runner(worker="first"), agents.runner(worker="second")
    first.run_once()
    _fill(agents)

    first.close()
    with connect(url) as elsewhere:
        moved = elsewhere.agents().runner(worker="third").run_once().read
        held_by_a_live_one = second.run_once().read

    assert moved == _EVENTS * len(_PRODUCERS)
    assert held_by_a_live_one == 0
    assert _received(agents, "dan") == {producer: list(range(_EVENTS)) for producer in _PRODUCERS}


def test_a_runner_that_is_told_to_stop_hands_its_shards_over_at_once(backend: Backend) -> None:
    agents = backend.agents()
    _fill(agents)
    stop = threading.Event()
    running = threading.Thread(target=agents.runner(worker="first").run, args=(stop,))
    running.start()
    while agents.stats("eve").visible < _EVENTS * len(_PRODUCERS):
        time.sleep(0.01)
    stop.set()
    running.join()

    agents.publish([AgentEvent("ann", "counted", {"n": _EVENTS})])

    assert agents.runner(worker="second").run_once().read == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["agents.fan_out.before_commit", "agents.fan_out.after_commit"])
def test_a_runner_killed_anywhere_leaves_each_row_once_and_in_order(backend: Backend, url: str, place: str) -> None:
    agents = backend.agents()
    _fill(agents)

    deaths = [_run(url, f"{place}=kill9#{nth}") for nth in (1, 2, 3)]
    survived = _run(url)

    assert deaths == [-signal.SIGKILL] * 3
    assert survived == 0
    expected = {producer: list(range(_EVENTS)) for producer in _PRODUCERS}
    assert [_received(agents, listener) for listener in _LISTENERS] == [expected, expected]


@pytest.mark.slow
def test_a_consumer_killed_with_a_lease_hands_it_to_the_next_in_the_same_order(backend: Backend, url: str) -> None:
    agents = backend.agents()
    _fill(agents)
    assert _run(url) == 0

    holder = subprocess.Popen([sys.executable, "-c", _HOLD, url, "dan"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    held = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    holder.stdout.close()
    again = _until_returned(agents, held)

    by_producer: dict[str, list[int]] = {}
    for delivery in again:
        by_producer.setdefault(str(delivery.group), []).append(n_of(delivery))
    assert held == len(again) == 10
    assert {delivery.receive_count for delivery in again} == {2}
    assert all(numbers == list(range(len(numbers))) for numbers in by_producer.values())


def _until_returned(agents: Agents, count: int) -> list[Delivery]:
    returned: list[Delivery] = []
    while len(returned) < count:
        returned += [each for each in agents.queue("dan").receive(wait=5) if each.receive_count > 1]
    return returned


def test_two_runners_share_the_shards(file_post: Post) -> None:
    file_post.register("ann", "bob")
    other = file_post.agents.runner(worker="other")

    for _ in range(3):
        file_post.runner.run_once()
        other.run_once()
        file_post.clock.advance(2)

    stream = file_post.backend.stream("agent-events")
    mine, theirs = (stream.lease(AGGREGATOR, worker) for worker in ("test", "other"))
    assert (len(mine), len(theirs)) == (2, 2)


def test_a_dead_runners_shards_are_taken_over_when_its_lease_is_over(file_post: Post) -> None:
    file_post.register("ann", "bob")
    file_post.agents.subscribe("bob", "ann")
    file_post.runner.run_once()
    file_post.agents.publish([AgentEvent("ann", "counted", {"n": 1})])
    successor = file_post.agents.runner(worker="successor")

    too_early = successor.run_once()
    file_post.clock.advance(5.1)
    later = successor.run_once()

    assert (too_early.read, later.read) == (0, 1)
    assert file_post.drain("bob") == [1]


def test_the_same_worker_takes_its_own_over_at_once(file_post: Post) -> None:
    file_post.register("ann", "bob")
    file_post.agents.subscribe("bob", "ann")
    file_post.runner.run_once()
    file_post.agents.publish([AgentEvent("ann", "counted", {"n": 1})])

    assert file_post.agents.runner(worker="test").run_once().read == 1


def test_a_stale_runner_commits_nothing(file_post: Post) -> None:
    file_post.register("ann", "bob")
    file_post.agents.subscribe("bob", "ann")
    stale = file_post.runner
    stale.run_once()
    file_post.clock.advance(1)
    stale.run_once()
    # Its lease ends while it is away, and it does not know.
    stale._leased_at = file_post.clock.monotonic() + 100
    file_post.clock.advance(6)
    file_post.agents.publish([AgentEvent("ann", "counted", {"n": 1})])

    lost = stale.run_once()
    rows = file_post.agents.stats("bob").visible
    file_post.clock.advance(1)
    file_post.agents.runner(worker="successor").run_once()

    assert (lost.written, rows) == (0, 0)
    assert file_post.drain("bob") == [1]


def test_a_full_disk_accepts_nothing_and_recovers(file_post: Post) -> None:
    file_post.register("ann", "bob")
    file_post.agents.subscribe("bob", "ann")
    file_post.agents.publish([AgentEvent("ann", "counted", {"n": 1})])
    failpoints.load("agents.fan_out.before_commit=enospc#1")

    try:
        with pytest.raises(StorageFull):
            file_post.runner.run_once()
        after = file_post.runner.run_once()
    finally:
        failpoints.load(None)

    assert (after.read, after.written) == (1, 1)
    assert file_post.drain("bob") == [1]
