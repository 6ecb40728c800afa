"""The example of a payment system: whoever is killed, every transfer settles once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KEYS = [
    "transfers",
    "states",
    "rail_submissions",
    "rail_calls",
    "ledger_entries",
    "ledger_debits",
    "ledger_credits",
    "timeline_events",
    "order_violations",
    "route_invalidations",
    "outbox",
    "dead_letters",
    "duplicates_suppressed",
    "kills",
    "seconds",
]


@pytest.fixture(params=["sqlite", "postgres"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The services' database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'services.db'}"
    else:
        yield request.getfixturevalue("postgres_dsn")


def run(dsn: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "examples.transfers", "--dsn", dsn, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def assert_settled(found: dict[str, Any], *, transfers: int, routes: int, kills: int) -> None:
    amounts = sum(Decimal(number % 97 + 1) for number in range(transfers))
    assert list(found) == KEYS
    assert found["states"] == {"SETTLED": transfers}
    assert found["rail_submissions"] == transfers
    assert found["rail_calls"] >= transfers
    assert found["ledger_entries"] == 2 * transfers
    assert Decimal(found["ledger_debits"]) == Decimal(found["ledger_credits"]) == amounts
    assert found["timeline_events"] == 3 * transfers
    assert found["order_violations"] == 0
    assert found["route_invalidations"] == routes
    assert found["outbox"] == {"pending": 0, "sent": 3 * transfers + routes, "failed": 0}
    assert found["dead_letters"] == 0
    assert found["kills"] == kills


def test_a_few_transfers_settle_though_services_are_killed(dsn: str) -> None:
    code, found = run(dsn, "--transfers", "12", "--routes", "2", "--kills", "3", "--seed", "7", "--timeout", "100")

    assert_settled(found, transfers=12, routes=2, kills=3)
    assert code == 0


def test_a_run_without_transfers_ends_when_its_routes_are_done(tmp_path: Path) -> None:
    code, found = run(f"sqlite:///{tmp_path / 'services.db'}", "--transfers", "0", "--routes", "1")

    assert code == 0
    assert (found["states"], found["outbox"]["sent"]) == ({}, 1)


def test_a_run_that_cannot_end_in_time_says_how_far_it_came(tmp_path: Path) -> None:
    code, found = run(f"sqlite:///{tmp_path / 'services.db'}", "--transfers", "5000", "--timeout", "3")

    assert code == 1
    assert list(found) == KEYS
    assert found["states"].get("SETTLED", 0) < 5_000


def test_five_hundred_transfers_settle_though_twenty_services_are_killed(dsn: str) -> None:
    code, found = run(dsn, "--transfers", "500", "--kills", "20", "--dispatchers", "2", "--timeout", "300")

    assert_settled(found, transfers=500, routes=3, kills=20)
    assert code == 0
