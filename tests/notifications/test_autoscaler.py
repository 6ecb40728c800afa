"""How many workers a backlog needs."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.errors import ConfigurationError
from postroad.notifications import Autoscaler
from postroad.queues import QueueStats


def queue(visible: int = 0, age: float | None = 0.0, *, in_flight: int = 0, delayed: int = 0) -> QueueStats:
    return QueueStats(visible=visible, in_flight=in_flight, delayed=delayed, oldest_age_seconds=age)


@pytest.mark.parametrize(
    ("stats", "current", "wanted"),
    [
        ({"push": queue(0)}, 1, 1),
        ({"push": queue(100)}, 1, 1),
        ({"push": queue(101)}, 1, 2),
        ({"push": queue(150), "offline": queue(350)}, 1, 4),
        ({"push": queue(99_999)}, 1, 10),
        ({"push": queue(1, 300)}, 3, 1),
        ({"push": queue(1, 301)}, 3, 4),
        ({"push": queue(1, 601)}, 3, 5),
        ({"push": queue(700, 301)}, 3, 7),
        ({"push": queue(1, 601)}, 9, 10),
        ({"push": queue(250, None)}, 1, 3),
        ({"push": queue(0)}, 4, 1),
    ],
)
def test_depth_counts_per_task_and_age_adds_steps(stats: dict[str, QueueStats], current: int, wanted: int) -> None:
    assert Autoscaler().decide(stats, current, at=0.0) == wanted


def test_it_grows_at_most_once_in_a_cooldown() -> None:
    scaler = Autoscaler()

    decided = [scaler.decide({"push": queue(1_000)}, 1, at=at) for at in (0.0, 59.9, 60.0)]

    assert decided == [10, 1, 10]


def test_it_shrinks_only_when_every_change_is_long_ago() -> None:
    scaler = Autoscaler()
    scaler.decide({"push": queue(500)}, 1, at=0.0)

    decided = [scaler.decide({"push": queue(0)}, 5, at=at) for at in (300.0, 300.1, 600.0, 600.2)]

    assert decided == [5, 1, 5, 1]


@pytest.mark.parametrize(
    ("stats", "wanted"),
    [(queue(), 0), (queue(in_flight=1), 1), (queue(delayed=1), 1), (queue(1), 1)],
    ids=["empty", "in-flight", "delayed", "visible"],
)
def test_nobody_works_only_when_nothing_is_left(stats: QueueStats, wanted: int) -> None:
    assert Autoscaler(min_tasks=0).decide({"push": stats}, 2, at=0.0) == wanted


@pytest.mark.parametrize(
    "options", [{"min_tasks": -1}, {"max_tasks": 0}, {"target_backlog": 0}, {"min_tasks": 3, "max_tasks": 2}]
)
def test_bounds_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Autoscaler(**options)
