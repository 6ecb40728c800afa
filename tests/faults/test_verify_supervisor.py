"""The supervisor of `postroad verify`: a process that ends by itself at the wrong moment is no fault of the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import postroad
from postroad.errors import Unavailable
from postroad.streams import TRIM_HORIZON, Record
from postroad.testing.verify import run as running, supervisor as supervising
from postroad.testing.verify.nemeses import Nemeses, RunFailed
from postroad.testing.verify.plan import Action, Plan
from postroad.testing.verify.run import Options
from postroad.testing.verify.scenario import START_AGAIN, Facts, History, Place, Role, Scenario, State, find_scenario
from postroad.testing.verify.stores import Opening
from postroad.testing.verify.supervisor import Slot, Supervisor
from postroad.testing.verify.workload import unread
from postroad.wiring import Backend


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of one process, which a test starts."""
    (tmp_path / "history").mkdir()
    nowhere = f"sqlite:///{tmp_path / 'store.db'}"
    directory = str(tmp_path)
    place = Place(
        store="sqlite", directory=directory, report=directory, url=nowhere, dsn=nowhere, visibility=2.0, faults=True
    )
    scenario = Scenario(
        facts=Facts(subscriptions={}, ordered=False),
        roles={"consumer": Role(work=lambda client, backend: None, holds=True)},
        prepare=lambda place, backend: None,
        unsettled=lambda place, backend: 0,
        read_back=lambda place, backend, history: None,
        weight=1,
    )
    plan = Plan(scenario="queue", seed=1, messages=1, seconds=1.0, kills=1, proxy_faults=0, actions=())
    with closing(History(place.history, "supervisor")) as history:
        options = Options(plans=(plan,), store="sqlite", size="quick", command="", report=tmp_path, work=tmp_path)
        opening = Opening(place=place, history=history, nemeses=Nemeses())
        made = Supervisor(scenario, plan, opening, options, threading.Event())
        yield made
        made._kill_all()


def _ended(code: int) -> subprocess.Popen[bytes]:
    """Return a process that has ended, although nobody has asked for its exit code."""
    process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


@pytest.mark.parametrize("do", ["kill", "pause", "restart"])
def test_a_process_that_ended_just_before_it_is_hit_is_started_again(
    supervisor: Supervisor, do: Literal["kill", "pause", "restart"], tmp_path: Path
) -> None:
    (slot,) = supervisor._slots
    slot.process = ended = _ended(START_AGAIN)
    supervisor._board.states[slot.row] = State.WORKING

    hit = supervisor._hit(slot, Action(0, do))
    supervisor._tick(0)

    assert slot.process is not ended
    assert slot.starts == 1
    # Only a restart counts: it asks a process to end, and it has ended.
    assert hit is (do == "restart")
    assert (tmp_path / "history" / "supervisor.jsonl").read_text().count('"op"') == hit


def test_a_process_that_does_not_start_is_named_with_what_it_said(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def start(slot: Slot) -> None:
        slot.name = "consumer-0.1"
        (tmp_path / "stderr" / slot.name).write_text("it waits for a lock")
        slot.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    monkeypatch.setattr(supervisor, "_start", start)
    monkeypatch.setattr(supervising, "_START_SECONDS", 0.01)

    with pytest.raises(RunFailed, match=r"consumer-0\.1 did not start: it waits for a lock"), supervisor.running():
        pass


def test_sending_is_progress_although_each_message_adds_what_two_subscriptions_have_to_settle(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slot,) = supervisor._slots
    slot.quota = 50
    supervisor._board.states[slot.row] = State.WORKING
    now, sent, settled = 0.0, 0, 0

    def pass_ten_seconds(seconds: float) -> None:
        nonlocal now, sent, settled
        now, sent, settled = now + 10, min(sent + 10, slot.quota), settled + 5 * (sent == slot.quota)
        supervisor._board.done[slot.row] = sent

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(supervisor, "_tick", pass_ten_seconds)
    monkeypatch.setattr(supervisor, "_unsettled", lambda: max(0, 2 * sent - settled))
    monkeypatch.setattr(supervisor, "_state", lambda slot: State.WORKING)

    assert supervisor.drain(lambda text: None)


def test_a_store_that_goes_away_under_the_supervisor_makes_the_run_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(place: Place, backend: Backend) -> None:
        raise Unavailable("the server does not answer")

    broken = replace(find_scenario("queue"), prepare=prepare)
    monkeypatch.setattr(running, "find_scenario", lambda name: broken)
    plan = Plan(scenario="queue", seed=1, messages=1, seconds=1.0, kills=0, proxy_faults=0, actions=())
    where, work = tmp_path / "report", tmp_path / "work"
    options = Options(plans=(plan,), store="sqlite", size="quick", command="", report=where, work=work)

    report = running.run(options, lambda text: None)

    assert report.verdict == "inconclusive"
    assert "Unavailable: the server does not answer" in report.reasons


def test_every_record_of_a_long_backlog_is_counted_so_that_progress_is_seen() -> None:
    with postroad.connect("memory://") as backend:
        stream = backend.stream("verify", 1)
        (shard,) = stream.shards()
        for _ in range(5):
            stream.put([Record(key="k", data=b"x")] * 500)
        all_of_it = unread(stream, "ledger")
        (lease,) = stream.lease("ledger", "worker", seconds=60)
        handled = stream.read(shard, after=TRIM_HORIZON, limit=10)
        stream.checkpoint("ledger", shard, handled[-1].sequence, lease=lease)

        assert (all_of_it, unread(stream, "ledger")) == (2_500, 2_490)
