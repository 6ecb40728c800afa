"""The children of `postroad up`: what they and the supervisor write to each other, and how one is kept running."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from io import RawIOBase
from typing import Literal

import msgspec

from postroad.errors import ConfigurationError, PostroadError, Unavailable
from postroad.settings import METRICS, Settings, beside, measuring_in, no_color
from postroad.telemetry import configure_logs, get_logger
from postroad.views import Part, PartState

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 10.0
STEADY_SECONDS = 60.0
DEATHS_TO_FAIL = 5
WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often a part died recently, and how long to wait before it is restarted."""

    deaths: tuple[float, ...] = ()
    total: int = 0
    delay: float = FIRST_SECONDS
    failed: bool = False

    def died(self, now: float, *, started_at: float) -> Restarts:
        """Return the state after a death at `now` of what was started at `started_at`."""
        recent = (*(death for death in self.deaths if now - death < WINDOW_SECONDS), now)
        steady = now - started_at >= STEADY_SECONDS
        delay = FIRST_SECONDS if steady or not self.deaths else min(self.delay * 2, LONGEST_SECONDS)
        return replace(self, deaths=recent, delay=delay, failed=len(recent) >= DEATHS_TO_FAIL)

    def started_again(self) -> Restarts:
        """Return the state after the start that followed a death."""
        return replace(self, total=self.total + 1)


class ChildConfig(msgspec.Struct, frozen=True):
    """The first line that a child reads. It carries the secrets, which must not stand in the arguments."""

    settings: Settings
    admin: str
    parent: int
    report_to: int
    listener: int | None = None
    demo: bool = False
    quiet: bool = False
    """Whether it writes no log lines below warnings until everything is ready."""


class Notice(msgspec.Struct, frozen=True):
    """A later line to a child: the state of all parts, and the phase.

    `stopping`: finish what runs and start nothing new; `closing`: exit now.
    """

    parts: tuple[Part, ...]
    phase: Literal["running", "stopping", "closing"] = "running"
    ready: bool = False
    """Whether people were told that everything is ready."""


class PartReport(msgspec.Struct, frozen=True):
    """The state of one part of a child."""

    name: str
    state: PartState
    restarts: int = 0
    missing: str | msgspec.UnsetType = msgspec.UNSET


class Report(msgspec.Struct, frozen=True):
    """A line from a child: the state of its parts, or why it cannot start."""

    parts: tuple[PartReport, ...] = ()
    refused: str | None = None
    remedy: str | None = None
    kind: Literal["configuration", "unavailable"] | None = None


def line(message: msgspec.Struct) -> bytes:
    """Return a message as one line of JSON."""
    return msgspec.json.encode(message) + b"\n"


def write_logs(settings: Settings, *, quiet: bool = False) -> None:
    """Write the log lines of this process as the settings say; if it is `quiet`, only warnings and errors."""
    level = "warning" if quiet and settings.log_level == "info" else settings.log_level
    configure_logs(level, settings.log_format, color=not no_color())


class SupervisorLink:
    """The child's connection to its supervisor."""

    def __init__(self, config: ChildConfig, notices: RawIOBase) -> None:
        self.config = config
        self._notices = notices
        self._reports = os.fdopen(config.report_to, "wb", buffering=0)
        self._lock = threading.Lock()
        self._quiet = config.quiet
        write_logs(config.settings, quiet=config.quiet)

    def send(self, report: Report) -> None:
        """Send a report; exit if the supervisor is gone."""
        with self._lock:
            try:
                self._reports.write(line(report))
            except BrokenPipeError:
                os._exit(1)

    def listen(self, on_notice: Callable[[Notice], None]) -> None:
        """Pass every notice to `on_notice` on a thread of its own, and exit when the supervisor is gone."""

        def run() -> None:
            for text in self._notices:
                notice = msgspec.json.decode(text, type=Notice)
                if notice.ready and self._quiet:
                    self._quiet = False
                    write_logs(self.config.settings)
                on_notice(notice)
            # Nothing is lost: leases expire, and nothing accepted is only in memory.
            os._exit(1)

        threading.Thread(target=run, name="notices", daemon=True).start()


_log = get_logger("up")


class Child:
    """One child process. It calls `changed` whenever the result of `parts()` has changed."""

    def __init__(
        self,
        name: str,
        config: ChildConfig,
        *,
        parts: tuple[str, ...],
        listener: socket.socket | None,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self._config = config
        self._listener = listener
        self._changed = changed
        self._reports = {part: PartReport(name=part, state="starting") for part in parts}
        self._process: Process | None = None
        self._restarts = Restarts()
        self._stopping = False
        self.refused: PostroadError | None = None

    @property
    def failed(self) -> bool:
        """Whether it died so often that it is not started again."""
        return self._restarts.failed

    def parts(self) -> tuple[Part, ...]:
        """Return the state of each of its parts."""
        pid = None if self._process is None else self._process.pid
        return tuple(
            Part(
                name=report.name,
                process=self.name,
                pid=pid,
                state="failed" if self.failed else "starting" if pid is None else report.state,
                restarts=self._restarts.total + report.restarts,
                missing=report.missing,
            )
            for report in self._reports.values()
        )

    async def keep_running(self) -> None:
        """Start it, and restart it whenever it dies, until it must stop or has died too often."""
        while await self._live_until_death():
            _log.warning(
                "part_failed" if self.failed else "part_stopped", part=self.name, restart_in=self._restarts.delay
            )
            if not self.failed:
                await asyncio.sleep(self._restarts.delay)
                self._restarts = self._restarts.started_again()

    def notify(self, notice: Notice) -> None:
        """Send a notice to the child, if it runs."""
        self._stopping = self._stopping or notice.phase != "running"
        if self._process is not None and self._process.stdin is not None:
            with suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(line(notice))

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _live_until_death(self) -> bool:
        """Run the process once and return whether it died although it was not stopping."""
        if self._stopping or self.failed:
            return False
        started_at = time.monotonic()
        await self._live()
        if not self._stopping:
            self._restarts = self._restarts.died(time.monotonic(), started_at=started_at)
            self._changed()
        return not self._stopping

    async def _live(self) -> None:
        try:
            reader, self._process = await self._start()
        except (OSError, RuntimeError) as error:
            # Too many processes, threads or open files, which may end: it counts as a death.
            _log.error("part_failed", part=self.name, error=str(error))
            return
        _log.info("part_started", part=self.name, pid=self._process.pid)
        reading = asyncio.create_task(self._read_reports(reader))
        self._changed()
        await self._process.wait()
        await reading
        self._process = None
        self._reports = {part: PartReport(name=part, state="starting") for part in self._reports}

    async def _start(self) -> tuple[int, Process]:
        """Start the process; return where its reports are read, and the process."""
        listener = None if self._listener is None else self._listener.fileno()
        reader, writer = os.pipe()
        config = msgspec.structs.replace(self._config, report_to=writer, listener=listener)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "postroad.up.child", self.name),
                stdin=asyncio.subprocess.PIPE,
                # What a child prints belongs to the log: programs read the supervisor's stdout.
                stdout=sys.stderr,
                pass_fds=[writer] if listener is None else [writer, listener],
                env=measuring_in(beside(config.settings.url, METRICS)),
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        assert process.stdin is not None
        process.stdin.write(line(config))
        return reader, process

    async def _read_reports(self, reader: int) -> None:
        stream = asyncio.StreamReader(limit=1_048_576)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader, "rb", buffering=0)
        )
        try:
            # A child that is killed while it writes leaves a line without its end.
            while (text := await stream.readline()).endswith(b"\n"):
                self._take(msgspec.json.decode(text, type=Report))
        finally:
            transport.close()

    def _take(self, report: Report) -> None:
        if report.refused is not None:
            kind = ConfigurationError if report.kind == "configuration" else Unavailable
            self.refused = kind(report.refused, remedy=report.remedy)
            _log.error("part_failed", part=self.name, error=report.refused)
        self._reports |= {part.name: part for part in report.parts}
        self._changed()
