"""What a benchmark measures in a process of its own is that process's alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from benchmarks import ours
from benchmarks.frame import WrongResult
from benchmarks.outbox_dispatch import together
from benchmarks.processes import child, hear, weigh

from postroad import OutgoingMessage

_MANY_BYTES = 300_000_000


def test_the_memory_of_a_large_parent_is_not_counted(tmp_path: Path) -> None:
    ballast = bytearray(_MANY_BYTES)
    ballast[::4_096] = b"x" * len(ballast[::4_096])

    with ours.open_queue(tmp_path), child(weigh, ours.url(tmp_path)) as pipe:
        pipe.send(100)
        answer = hear(pipe)

    assert isinstance(answer, tuple)
    received, most = answer
    assert received == 100
    assert 10_000_000 < most < len(ballast) // 2


@contextmanager
def told(*published: list[tuple[float, int]]) -> Iterator[list[Connection]]:
    """Dispatchers, each of which published these numbers of one key at these moments."""
    pairs = [Pipe() for _ in published]
    for (_, there), calls in zip(pairs, published, strict=True):
        there.send([(at, OutgoingMessage("x", {"Seq": str(seq)}, "key", f"id-{seq}")) for at, seq in calls])
    yield [here for here, _ in pairs]
    for pair in pairs:
        for end in pair:
            end.close()


def test_what_several_dispatchers_published_in_turn_is_one_order() -> None:
    with told([(1.0, 1), (3.0, 3)], [(2.0, 2)]) as pipes:
        together(pipes).check(rows=3, ordered=True)


@pytest.mark.parametrize(
    "published",
    [
        pytest.param(([(1.0, 1), (3.0, 3)], [(2.0, 1)]), id="doubled"),
        pytest.param(([(1.0, 1)], [(2.0, 2)]), id="lost"),
        pytest.param(([(1.0, 1), (2.0, 3)], [(3.0, 2)]), id="out-of-order"),
    ],
)
def test_a_round_of_several_dispatchers_that_came_out_wrong_is_refused(
    published: tuple[list[tuple[float, int]], ...],
) -> None:
    with told(*published) as pipes, pytest.raises(WrongResult):
        together(pipes).check(rows=3, ordered=True)
