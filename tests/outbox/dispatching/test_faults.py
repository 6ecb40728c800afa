"""Processes that die, hang or lose their database at the worst moment: nothing is lost and no key out of order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.outbox.dispatching.conftest import MakeDispatcher
from tests.outbox.dispatching.processes import (
    ROOT,
    Dispatchers,
    check_order,
    crashing_postgres,
    stop_the_writer_of_the_log,
    stopped,
)
from tests.outbox.dispatching.publishers import Recorder
from tests.outbox.dispatching.test_leases import Holding
from tests.outbox.fixtures import OutboxFixture, postgres_fixture
from tests.waiting import eventually

from postroad.outbox import DispatcherConfig
from postroad.outbox.dispatching.dispatcher import store_for
from postroad.outbox.dispatching.store import FIRST_KEY

pytestmark = pytest.mark.slow
LEASE = 1.0
PRODUCER = """
import os, signal, sys
import psycopg
from postroad.outbox import DomainEvent, Outbox

dsn, moment = sys.argv[1:]
with psycopg.connect(dsn) as connection:
    connection.execute("INSERT INTO orders VALUES ('o1')")
    Outbox.postgres().add(connection, DomainEvent("orders.placed", {"orderId": "o1"}, {}))
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    connection.commit()
    os.kill(os.getpid(), signal.SIGKILL)
"""
MakeDispatchers = Callable[..., Dispatchers]


@pytest.fixture
def dispatchers_of(tmp_path: Path) -> Iterator[MakeDispatchers]:
    made: list[Dispatchers] = []

    def make(dsn: str, **config: Any) -> Dispatchers:
        made.append(Dispatchers(dsn, tmp_path, **{"lease": LEASE, "poll": 0.1, "backoff": [0.05], **config}))
        return made[-1]

    yield make
    for each in made:
        each.end()


def sent(fixture: OutboxFixture) -> int:
    return int(fixture.run("SELECT count(*) FROM outbox WHERE state = 'SENT'")[0][0])


@pytest.mark.parametrize(("moment", "rows"), [("before", 0), ("after", 1)])
def test_a_producer_killed_around_its_commit_leaves_both_rows_or_none(
    on_postgres: OutboxFixture, moment: str, rows: int
) -> None:
    on_postgres.run("CREATE TABLE orders (id text)")

    done = subprocess.run([sys.executable, "-c", PRODUCER, on_postgres.dsn, moment], cwd=ROOT)

    assert done.returncode == -signal.SIGKILL
    assert on_postgres.run("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox)") == [(rows, rows)]


@pytest.mark.parametrize("failpoint", ["outbox.after_claim", "outbox.after_publish", "outbox.before_settle"])
def test_what_a_killed_dispatcher_held_is_published_by_another_under_the_same_ids(
    fixture: OutboxFixture, dispatchers_of: MakeDispatchers, failpoint: str
) -> None:
    events = [fixture.add(payload={"n": n}) for n in range(5)]
    dispatchers = dispatchers_of(fixture.dsn)
    doomed = dispatchers.start(f"{failpoint}=kill9#1")
    assert doomed.wait(120) == -signal.SIGKILL
    before = len(dispatchers.published())

    successor = dispatchers.start()

    eventually(lambda: sent(fixture) == 5)
    published = dispatchers.published()
    check_order(published)
    assert {each.event_id for each in published} == {str(event.event_id) for event in events}
    assert len(published) == 5 + before
    assert (before > 0) == (failpoint != "outbox.after_claim")
    assert stopped(successor)["sent"] == 5


def test_a_dispatcher_killed_in_the_middle_of_a_key_leaves_no_hole(
    fixture: OutboxFixture, dispatchers_of: MakeDispatchers
) -> None:
    for n in range(20):
        fixture.add(payload={"n": n})
    dispatchers = dispatchers_of(fixture.dsn)
    doomed = dispatchers.start("outbox.mid_batch=kill9#7")
    assert doomed.wait(120) == -signal.SIGKILL

    dispatchers.start()

    eventually(lambda: sent(fixture) == 20)
    check_order(dispatchers.published())


def test_a_dispatcher_paused_beyond_its_lease_settles_nothing_when_it_wakes(
    fixture: OutboxFixture, dispatchers_of: MakeDispatchers
) -> None:
    for n in range(5):
        fixture.add(payload={"n": n})
    dispatchers = dispatchers_of(fixture.dsn)
    paused = dispatchers.start("outbox.before_settle=stop:600#1")
    eventually(lambda: _is_stopped(paused.pid))

    successor = dispatchers.start()

    eventually(lambda: sent(fixture) == 5)
    attempts_before = fixture.run("SELECT attempts, updatedat FROM outbox ORDER BY seq")
    _resume(paused.pid)
    late = stopped(paused)
    check_order(dispatchers.published())
    assert (late["sent"], late["stale"]) == (0, 5)
    assert stopped(successor)["sent"] == 5
    assert fixture.run("SELECT attempts, updatedat FROM outbox ORDER BY seq") == attempts_before


def test_a_publish_whose_answer_was_lost_is_repeated_under_the_same_id(
    fixture: OutboxFixture, dispatchers_of: MakeDispatchers
) -> None:
    event = fixture.add()
    dispatchers = dispatchers_of(fixture.dsn)

    process = dispatchers.start("outbox.after_publish=raise#1")

    eventually(lambda: sent(fixture) == 1)
    assert [each.event_id for each in dispatchers.published()] == [str(event.event_id)] * 2
    assert fixture.run("SELECT attempts FROM outbox") == [(2,)]
    assert stopped(process)["retried"] == 1


def test_sigterm_ends_with_everything_given_back(fixture: OutboxFixture, dispatchers_of: MakeDispatchers) -> None:
    for n in range(300):
        fixture.add(key={"transferId": f"tr_{n % 3}"}, payload={"n": n})
    process = dispatchers_of(fixture.dsn).start()
    eventually(lambda: sent(fixture) > 10)

    report = stopped(process)

    assert report["sent"] == sent(fixture)
    assert fixture.run("SELECT count(*) FROM outbox WHERE lease_owner IS NOT NULL OR lease_until IS NOT NULL") == [(0,)]


def test_after_a_crash_of_postgresql_claims_go_on_and_nothing_is_lost(
    tmp_path: Path, dispatchers_of: MakeDispatchers
) -> None:
    with crashing_postgres(tmp_path) as (dsn, crash):
        fixture = postgres_fixture(dsn)
        dispatchers = dispatchers_of(dsn)
        process = dispatchers.start()
        for n in range(40):
            fixture.add(key={"transferId": f"tr_{n % 4}"}, payload={"n": n})
        eventually(lambda: sent(fixture) > 0)
        crash()
        for n in range(40):
            fixture.add(key={"transferId": f"tr_{n % 4}"}, payload={"n": n})

        eventually(lambda: sent(fixture) == 80)

        check_order(dispatchers.published())
        assert stopped(process)["sent"] == 80
        fixture.outbox.close()


def test_a_row_whose_lease_a_crash_forgot_is_counted_as_sent_once(
    tmp_path: Path, dispatcher_of: MakeDispatcher
) -> None:
    holding, stop = Holding(), threading.Event()
    with ExitStack() as stack:
        dsn, crash = stack.enter_context(crashing_postgres(tmp_path))
        threads = stack.enter_context(ThreadPoolExecutor())
        stack.callback(stop.set)
        stack.callback(holding.let_go.set)
        fixture = postgres_fixture(dsn)
        stack.callback(fixture.outbox.close)
        for n in range(7):
            fixture.add(key={"transferId": f"tr_{n}"}, payload={"n": n})
        fixture.run("CHECKPOINT")
        kill_writer = stop_the_writer_of_the_log(dsn)
        first = threads.submit(dispatcher_of(fixture.outbox, holding).run, stop)
        assert holding.entered.wait(120)
        kill_writer()
        crash()

        second = dispatcher_of(fixture.outbox, Recorder()).drain()

        holding.let_go.set()
        # After the crash both claim rows anew, and which of them gets which is a matter of chance.
        eventually(lambda: sent(fixture) == 7)
        stop.set()
        assert first.result(120).sent + second.sent == 7
        assert fixture.run("SELECT DISTINCT attempts FROM outbox") == [(1,)]


def test_tokens_of_leases_that_a_crash_forgot_are_not_given_again(tmp_path: Path) -> None:
    with crashing_postgres(tmp_path) as (dsn, crash):
        fixture = postgres_fixture(dsn)
        fixture.add()
        tokens: list[int] = []
        for _ in range(3):
            fixture.run("CHECKPOINT")
            kill_writer = stop_the_writer_of_the_log(dsn)
            store = store_for(fixture.outbox, owner="host-1", config=DispatcherConfig())
            store.open()
            tokens += [row.token for row in store.claim(1, after=FIRST_KEY)]
            kill_writer()
            crash()
            store.close()

        assert len(tokens) == 3
        assert sorted(set(tokens)) == tokens
        fixture.outbox.close()


def _resume(pid: int) -> None:
    """End the sleep of the shell that wakes the stopped process after it."""
    (shell,) = _children(pid)
    eventually(lambda: _children(shell))
    os.kill(_children(shell)[0], signal.SIGKILL)
    eventually(lambda: not _is_stopped(pid))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
