"""Everything at once: many dispatchers, failing publishes, kills, pauses and crashes of the server.

The number of rows can be given: OUTBOX_STORM_ROWS=20000.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
from benchmarks.outbox_load import fill
from tests.outbox.dispatching.processes import Dispatchers, check_order, crashing_postgres, stopped
from tests.outbox.fixtures import OutboxFixture, postgres_fixture
from tests.waiting import eventually

ROWS = int(os.environ.get("OUTBOX_STORM_ROWS", "4000"))
KEYS = 200
DISPATCHERS = 4
FAILURES = 0.02
RETRY_MAX = 6
_OPEN = (
    "SELECT seq, lane, state, held, attempts, next_attempt, lease_owner, lease_until, now() FROM outbox"
    " WHERE state <> 'SENT' ORDER BY seq LIMIT 20"
)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "poison"), [("block", 0), ("skip", 499)])
def test_every_event_is_published_and_no_key_is_out_of_order_whatever_happens(
    tmp_path: Path, policy: str, poison: int
) -> None:
    chance = random.Random(1)
    with crashing_postgres(tmp_path) as (dsn, crash):
        fixture = postgres_fixture(dsn)
        fill(dsn, ROWS // 2, keys=KEYS)
        dispatchers = Dispatchers(
            dsn, tmp_path, lease=1.0, poll=0.1, backoff=[0.05], retry_max=RETRY_MAX, policy=policy
        )
        start = partial(dispatchers.start_and_wait, failures=FAILURES, poison=poison)
        try:
            for _ in range(DISPATCHERS):
                start()
            for trouble in ("kill", "pause", "crash", "kill", "pause", "kill"):
                _cause(trouble, dispatchers, start=start, crash=crash, chance=chance)
            fill(dsn, ROWS - ROWS // 2, keys=KEYS)
            _cause("crash", dispatchers, start=start, crash=crash, chance=chance)

            try:
                eventually(lambda: _open_rows(fixture) == 0)
            except AssertionError:
                pytest.fail(f"still open: {fixture.run(_OPEN)}")

            assert len(dispatchers.alive()) == DISPATCHERS
            reports = [stopped(process) for process in dispatchers.alive()]
        finally:
            dispatchers.end()
        published = dispatchers.published()
        rows = fixture.run("SELECT event_id, seq, state, attempts, lasterror FROM outbox")
        fixture.outbox.close()
    check_order(published)
    _check_rows(rows, Counter(each.event_id for each in published), poison)
    assert sum(report["sent"] for report in reports) <= ROWS


def _cause(
    trouble: str,
    dispatchers: Dispatchers,
    *,
    start: Callable[[], object],
    crash: Callable[[], None],
    chance: random.Random,
) -> None:
    time.sleep(chance.uniform(0.3, 0.8))
    victim = chance.choice(dispatchers.alive())
    if trouble == "crash":
        crash()
    elif trouble == "pause":
        victim.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.5, 2.5))
        victim.send_signal(signal.SIGCONT)
    else:
        victim.kill()
        victim.wait()
        start()


def _open_rows(fixture: OutboxFixture) -> int:
    try:
        return int(fixture.run("SELECT count(*) FROM outbox WHERE state = 'PENDING'")[0][0])
    except psycopg.OperationalError:
        return -1


def _check_rows(rows: list[tuple[str, int, str, int, str | None]], times: Counter[str], poison: int) -> None:
    """Nothing is lost; what is sent was published; what has failed, and only that, could never be."""
    assert len(rows) == ROWS
    for event_id, seq, state, attempts, error in rows:
        if poison and seq % poison == 0:
            assert (state, attempts, error) == ("FAILED", RETRY_MAX, "TimeoutError: never")
            assert times[event_id] == 0
        else:
            assert (state, error) == ("SENT", None)
            assert 1 <= attempts <= RETRY_MAX
            assert times[event_id] >= 1
    assert set(times) <= {event_id for event_id, *_ in rows}
