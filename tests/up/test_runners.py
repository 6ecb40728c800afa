"""The child `runners`: a part whose store is away for a while is no part that died."""

from __future__ import annotations

import threading

import msgspec
import pytest
from tests.waiting import eventually

from postroad.errors import Unavailable
from postroad.settings import Settings
from postroad.up import runners
from postroad.up.children import DEATHS_TO_FAIL, PartReport
from postroad.up.runners import RunnerPart, Runners, Workplace
from postroad.wiring import connect


class Supervised:
    """What a supervisor would hear."""

    def __init__(self) -> None:
        self.heard: list[PartReport] = []

    def report(self, *parts: PartReport) -> None:
        self.heard += parts

    @property
    def last(self) -> PartReport | None:
        return self.heard[-1] if self.heard else None


def test_a_part_whose_store_is_away_says_what_it_waits_for_and_goes_on_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runners, "_LONGEST_LOOK", 0.01)
    monkeypatch.setattr(runners, "_FIRST_LOOK", 0.01)
    monkeypatch.setattr(runners, "_STEADY_SECONDS", 0.05)
    supervisor, away, stop = Supervised(), threading.Event(), threading.Event()
    away.set()
    lives: list[int] = []

    def work(at: Workplace) -> None:
        lives.append(1)
        if away.is_set():
            raise Unavailable("the table is away", remedy="Make it.")
        at.stop.wait()

    with connect("memory://") as backend:
        place = Workplace(backend=backend, settings=Settings(), stop=stop)
        running = threading.Thread(target=Runners(supervisor, place).run, args=([RunnerPart("part", work)],))  # type: ignore[arg-type]  # a line, as far as it is used
        running.start()
        try:
            eventually(lambda: len(lives) > 3 * DEATHS_TO_FAIL)
            while_away = supervisor.last
            away.clear()
            eventually(lambda: supervisor.last is not None and supervisor.last.state == "running")
        finally:
            stop.set()
            running.join()

    assert while_away == PartReport(name="part", state="starting", missing="the table is away Make it.")
    assert supervisor.last == PartReport(name="part", state="running")
    assert supervisor.last.missing is msgspec.UNSET
