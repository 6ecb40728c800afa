from __future__ import annotations

import tracemalloc
from collections.abc import Collection

import pytest
from tests.agents.conftest import Post

from postroad.agents import AgentEvent
from postroad.agents.sqlite import store
from postroad.agents.sqlite.queue import EVERY_QUEUE
from postroad.engine.wakeup import Listeners


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The channels that each commit wakes, which it still does."""
    heard: list[set[str]] = []
    wake = Listeners.wake

    def listening(listeners: Listeners, channels: Collection[str]) -> None:
        heard.append(set(channels))
        wake(listeners, channels)

    monkeypatch.setattr(Listeners, "wake", listening)
    return heard


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_a_few_listeners_are_woken_each_by_its_lane(file_post: Post, woken: list[set[str]], delay: float) -> None:
    post = _crowd(file_post, 3, delay)
    woken.clear()

    _move(post, delay)

    channels_woken = [channel for channels in woken for channel in channels if channel.startswith("a")]
    assert len(channels_woken) == 3
    assert set(channels_woken).isdisjoint({EVERY_QUEUE})


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_very_many_listeners_are_woken_all_at_once(
    file_post: Post, woken: list[set[str]], monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    monkeypatch.setattr(store, "MOST_WOKEN", 2)
    post = _crowd(file_post, 3, delay)
    woken.clear()

    _move(post, delay)

    channels_woken = {channel for channels in woken for channel in channels if channel.startswith("a")}
    assert channels_woken <= {EVERY_QUEUE}
    assert channels_woken


def test_an_events_listeners_cost_no_memory_however_many_they_are(file_post: Post) -> None:
    post = _crowd(file_post, 5_000, 0.0)

    tracemalloc.start()
    try:
        written = post.runner.run_once().written
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert written == 5_000
    assert peak < 400_000


def _crowd(post: Post, count: int, delay: float) -> Post:
    """So many listeners to one agent whose event is on the stream."""
    post = post.configured(dispatch_delay=delay)
    post.register("ann", "bob")
    post.agents.subscribe("bob", "ann")
    post.publish("ann", 0)
    post.clock.advance(delay)
    post.move()
    listeners = [made.agent_id for made in post.agents.register_many(count - 1)]
    post.agents.subscribe_many([(listener, "ann") for listener in listeners])
    post.agents.publish([AgentEvent("ann", "counted", {"n": 1})])
    return post


def _move(post: Post, delay: float) -> None:
    """Move the event to the queues."""
    post.move()
    post.clock.advance(delay)
    post.runner.run_once()
