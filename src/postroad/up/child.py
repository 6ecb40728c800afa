"""A child of `postroad up`: `python -m postroad.up.child server|runners`, told what to do on stdin."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from io import RawIOBase

import msgspec

from postroad.errors import ConfigurationError, PostroadError
from postroad.settings import no_color
from postroad.telemetry import configure_logs
from postroad.up.children import Job, Notice, PartReport, Report, line

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when `parent` dies. Call it first: a parent that is dead already ends us."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Line:
    """The child's end of the line to its supervisor."""

    def __init__(self, job: Job, notices: RawIOBase) -> None:
        self.job = job
        self._notices = notices
        self._reports = os.fdopen(job.report_to, "wb", buffering=0)
        self._lock = threading.Lock()

    def report(self, *parts: PartReport) -> None:
        """Tell the supervisor how our parts are."""
        self.send(Report(parts=parts))

    def send(self, report: Report) -> None:
        """Tell the supervisor; one that is gone hears nothing."""
        with self._lock:
            try:
                self._reports.write(line(report))
            except BrokenPipeError:
                os._exit(1)

    def listen(self, hear: Callable[[Notice], None]) -> None:
        """Hand every notice to `hear`, on a thread of its own. The end of the line is the end of the process."""

        def run() -> None:
            for text in self._notices:
                hear(msgspec.json.decode(text, type=Notice))
            # The supervisor is gone. What we hold is safe: leases expire, and nothing accepted is only in memory.
            os._exit(1)

        threading.Thread(target=run, name="notices", daemon=True).start()


def main(kind: str) -> int:
    """Do the job of a child until the supervisor says stop."""
    # Ctrl-C reaches the whole group; the supervisor alone decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Unbuffered, so that a thread that still reads holds no lock when the process ends.
    notices = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  # open as long as the process lives
    job = msgspec.json.decode(notices.readline(), type=Job)
    die_with_parent(job.parent)
    configure_logs(job.settings.log_level, job.settings.log_format, color=not no_color())
    to_supervisor = Line(job, notices)
    try:
        _work(kind)(to_supervisor)
    except PostroadError as error:
        to_supervisor.send(_refusal(error))
        return 1
    return 0


def _work(kind: str) -> Callable[[Line], None]:
    if kind == "server":
        from postroad.up.server import serve

        return serve
    from postroad.up.runners import run

    return run


def _refusal(error: PostroadError) -> Report:
    configuration = isinstance(error, ConfigurationError)
    return Report(refused=str(error), remedy=error.remedy, kind="configuration" if configuration else "unavailable")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
