from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.connections.ringer import CROWD, Ringer
from postroad.connections.wakeup import Doorbell


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[list[Doorbell]]:
    """As many listeners as make a crowd."""
    bells = [Doorbell(tmp_path / "wake") for _ in range(CROWD)]
    for bell in bells:
        bell.hang()
    yield bells
    for bell in bells:
        bell.close()


@pytest.fixture
def ringer(tmp_path: Path) -> Iterator[Ringer]:
    bell = Doorbell(tmp_path / "wake")
    yield Ringer(bell)
    bell.close()


def test_a_crowd_is_rung_for(crowd: list[Doorbell], ringer: Ringer) -> None:
    ringer.ring(b"orders\njobs")

    assert [bell.listen(20) for bell in crowd] == [{b"orders", b"jobs"}] * CROWD
    ringer.close()


def test_closing_rings_for_what_is_left(crowd: list[Doorbell], ringer: Ringer) -> None:
    for number in range(5):
        ringer.ring(f"{number}".encode())

    ringer.close()

    assert [len(bell.listen(0)) for bell in crowd] == [5] * CROWD


def test_a_few_are_rung_for_before_the_call_returns(crowd: list[Doorbell], ringer: Ringer) -> None:
    crowd[0].close()

    ringer.ring(b"orders")

    assert [bell.listen(0) for bell in crowd[1:]] == [{b"orders"}] * (CROWD - 1)
