"""The child `runners`: a part whose store is away for a while is no part that died."""

from __future__ import annotations

import threading

import msgspec
import pytest
from tests.waiting import eventually

from postroad.errors import Unavailable
from postroad.settings import Settings
from postroad.up import runners
from postroad.up.children import DEATHS_TO_FAIL, PartReport, Report
from postroad.up.runners import Runners
from postroad.wiring import Backend, connect


class FakeLink:
    """A link to a supervisor that keeps the reports."""

    def __init__(self) -> None:
        self.reports: list[PartReport] = []

    def send(self, report: Report) -> None:
        self.reports += report.parts

    @property
    def last(self) -> PartReport | None:
        return self.reports[-1] if self.reports else None


def test_a_part_whose_store_is_away_says_what_it_waits_for_and_goes_on_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runners, "_LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(runners, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(runners, "_STEADY_SECONDS", 0.05)
    supervisor, away, stop = FakeLink(), threading.Event(), threading.Event()
    away.set()
    lives: list[int] = []

    def work(backend: Backend, settings: Settings, stop: threading.Event) -> None:
        lives.append(1)
        if away.is_set():
            raise Unavailable("the table is away", remedy="Make it.")
        stop.wait()

    with connect("memory://") as backend:
        runners_of_part = Runners(supervisor, backend, Settings(), stop)  # type: ignore[arg-type]  # a link, as far as it is used
        running = threading.Thread(target=runners_of_part.run, args=({"part": work},))
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
