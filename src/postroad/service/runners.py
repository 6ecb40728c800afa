"""The child `runners`: every part on a thread, started again when it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from postroad.http.parts import PartState
from postroad.service.child import Line
from postroad.service.loading import load_modules
from postroad.service.parts import RUNNER_PARTS, RunnerPart, Workplace
from postroad.service.restarts import Restarts
from postroad.service.wire import Notice, PartReport
from postroad.telemetry import get_logger
from postroad.wiring import connect

_log = get_logger("runners")


def run(to_supervisor: Line) -> None:
    """Run all parts until the supervisor says stop."""
    settings = to_supervisor.job.settings
    load_modules(settings.load)
    with connect(settings.url, trail_keep=settings.trail_keep) as backend:
        stop = threading.Event()

        def hear(notice: Notice) -> None:
            if notice.phase != "running":
                stop.set()

        to_supervisor.listen(hear)
        Runners(to_supervisor, Workplace(backend=backend, settings=settings, stop=stop)).run(RUNNER_PARTS)


class Runners:
    """The threads of the parts, and what the supervisor is told about them."""

    def __init__(self, to_supervisor: Line, workplace: Workplace) -> None:
        self._to_supervisor = to_supervisor
        self._workplace = workplace
        self._lock = threading.Lock()
        self._reports: dict[str, PartReport] = {}

    def run(self, parts: Sequence[RunnerPart]) -> None:
        """Run the parts and return when all have stopped."""
        threads = [threading.Thread(target=self._keep_running, args=(part,), name=part.name) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _keep_running(self, part: RunnerPart) -> None:
        stop = self._workplace.stop
        restarts = Restarts()
        while not stop.is_set():
            self._tell(part, "running", restarts)
            started_at = time.monotonic()
            try:
                part.run(self._workplace)
            except Exception:
                _log.exception("part_failed", part=part.name)
            if stop.is_set():
                return
            restarts = restarts.died(time.monotonic(), started_at=started_at)
            if restarts.failed:
                self._tell(part, "failed", restarts)
                return
            self._tell(part, "starting", restarts)
            stop.wait(restarts.delay)
            restarts = restarts.started_again()

    def _tell(self, part: RunnerPart, state: PartState, restarts: Restarts) -> None:
        with self._lock:
            self._reports[part.name] = PartReport(name=part.name, state=state, restarts=restarts.total)
            self._to_supervisor.report(*self._reports.values())
