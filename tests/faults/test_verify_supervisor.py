"""The supervisor of `postroad verify`: a process that ends by itself at the wrong moment is no fault of the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from postroad.testing.verify.nemeses import Nemeses
from postroad.testing.verify.plan import Action, Plan
from postroad.testing.verify.run import Options
from postroad.testing.verify.scenario import START_AGAIN, Facts, History, Place, Role, Scenario, State
from postroad.testing.verify.stores import Opening
from postroad.testing.verify.supervisor import Supervisor


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
        name="queue",
        facts=Facts(subscriptions={}, ordered=False),
        roles={"consumer": Role(work=lambda client: None, holds=True)},
        prepare=lambda place: None,
        unsettled=lambda place: 0,
        read_back=lambda place, history: None,
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
