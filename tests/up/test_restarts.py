"""When a part that died is started again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from postroad.up.children import Restarts

pytestmark = pytest.mark.slow


def test_the_pause_doubles_from_a_fifth_of_a_second_to_ten_seconds() -> None:
    restarts, pauses = Restarts(), []
    for death in range(9):
        restarts = restarts.died(death * 61.0, started_at=death * 61.0 - 1)
        pauses.append(restarts.delay)

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert not restarts.failed


def test_a_minute_alive_makes_the_pause_short_again() -> None:
    restarts = Restarts().died(1.0, started_at=0.0).died(2.0, started_at=1.0)

    assert restarts.died(62.5, started_at=2.4).delay == 0.2


def test_five_deaths_within_a_minute_are_a_failure() -> None:
    restarts = Restarts()
    for death in range(4):
        restarts = restarts.died(float(death), started_at=float(death))

    assert not restarts.failed
    assert restarts.died(59.0, started_at=58.0).failed
    assert not restarts.died(61.0, started_at=60.5).failed


def test_a_server_starts_without_what_it_does_not_need() -> None:
    program = "import sys, postroad.up.child, postroad.http.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert "postroad.http.app" in loaded
    assert not {"boto3", "botocore", "psycopg", "postroad.bus", "postroad.operations.doctor"}.intersection(loaded)
    assert not [name for name in loaded if name.startswith("postroad.topology")]
