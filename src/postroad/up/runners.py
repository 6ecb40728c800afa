"""The child `runners`: every part on a thread, started again when it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import msgspec

from postroad.errors import PostroadError
from postroad.settings import Settings
from postroad.telemetry import get_logger
from postroad.up.child import Line
from postroad.up.children import Notice, PartReport, Restarts
from postroad.up.notifications import send_notifications
from postroad.up.work import keep_house, load_modules, move_events, run_buses, run_tasks
from postroad.views import PartState
from postroad.wiring import Backend, connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What a part works with. It returns soon after `stop` is set."""

    backend: Backend
    settings: Settings
    stop: threading.Event


@dataclass(frozen=True, slots=True)
class RunnerPart:
    """A part: its name, and what it does until it is told to stop."""

    name: str
    run: Callable[[Workplace], None]


RUNNER_PARTS = (
    RunnerPart("housekeeping", lambda at: keep_house(at.backend, at.settings, at.stop)),
    RunnerPart("agents", lambda at: move_events(at.backend, at.stop, functions=at.settings.agents_functions)),
    RunnerPart("notifications", lambda at: send_notifications(at.backend, at.stop)),
    RunnerPart("bus", lambda at: run_buses(at.backend, at.settings, at.stop)),
    RunnerPart("worker", lambda at: run_tasks(at.backend, at.settings, at.stop)),
)


_FIRST_LOOK = 0.5
_LONGEST_LOOK = 30.0
_STEADY_SECONDS = 2.0
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
                self._run_when_it_can(part, restarts)
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

    def _run_when_it_can(self, part: RunnerPart, restarts: Restarts) -> None:
        """Run the part; while something that it needs is away, say so and look again, which is no death."""
        pause = _FIRST_LOOK
        missing: str | None = None
        while not self._workplace.stop.is_set():
            started_at = time.monotonic()
            try:
                with self._recovering(part, restarts) if missing else nullcontext():
                    part.run(self._workplace)
                return
            except PostroadError as error:
                if time.monotonic() - started_at > _STEADY_SECONDS:
                    pause, missing = _FIRST_LOOK, None
                told, missing = missing, f"{error} {error.remedy}"
            if missing != told:
                _log.warning("part_waiting", part=part.name, error=missing)
            self._tell(part, "starting", restarts, missing)
            self._workplace.stop.wait(pause)
            pause = min(pause * 2, _LONGEST_LOOK)

    @contextmanager
    def _recovering(self, part: RunnerPart, restarts: Restarts) -> Iterator[None]:
        """Say that a part which failed a moment ago runs again, once it has done so for a while."""
        steady = threading.Timer(_STEADY_SECONDS, self._tell, (part, "running", restarts))
        steady.start()
        try:
            yield
        finally:
            steady.cancel()
            steady.join()

    def _tell(self, part: RunnerPart, state: PartState, restarts: Restarts, missing: str | None = None) -> None:
        with self._lock:
            self._reports[part.name] = PartReport(
                name=part.name,
                state=state,
                restarts=restarts.total,
                missing=msgspec.UNSET if missing is None else missing,
            )
            self._to_supervisor.report(*self._reports.values())
