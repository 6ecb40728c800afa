"""What a benchmark measures in a process of its own is that process's alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks import ours
from benchmarks.processes import child, hear, weigh

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
